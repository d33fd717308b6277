// Predictions as text for people.
#ifndef EDGEWISE_CLIENT_CLI_RENDER_H_
#define EDGEWISE_CLIENT_CLI_RENDER_H_

#include <cstdint>
#include <string>

#include "client/cli/inputs.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// One answer in full: a block of aligned lines. `response` has one prediction.
std::string RenderAnswer(const v1::PredictResponse& response);

// One line per input, for files. The heading and the line of input `number` (from 1) have the same columns.
std::string RenderHeading();
std::string RenderLine(size_t number, const v1::PredictResponse& response, const LabelledInput& input);

// Right answers among those whose label is known, and how far off those are whose value is known.
struct Accuracy {
  uint64_t right = 0;
  uint64_t known = 0;
  double off = 0;  // sum of |answer - value| over `valued`
  uint64_t valued = 0;
  // False when the labels do not fit the answer, which then counts as wrong in every known label.
  bool Add(const v1::Prediction& prediction, const LabelledInput& input);
};

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_RENDER_H_
