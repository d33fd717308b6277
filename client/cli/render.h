// Predictions as text for people. `names`: of the labels by id, where they are known and there is one for each; they
// name what an answer of a multi-label model does not.
#ifndef EDGEWISE_CLIENT_CLI_RENDER_H_
#define EDGEWISE_CLIENT_CLI_RENDER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/cli/request/inputs.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// One answer in full: a block of aligned lines. `response` has one prediction.
std::string RenderAnswer(const v1::PredictResponse& response, std::span<const std::string> names = {});

// One line per input, for files. The heading and the line of input `number` (from 1) have the same columns.
std::string RenderHeading();
std::string RenderLine(size_t number, const v1::PredictResponse& response, const LabelledInput& input,
                       std::span<const std::string> names = {});

// A multi-label model: the labels to which it says yes, by rising id; and those of the input that hold, in the same
// order, where these are known.
std::vector<int32_t> AnsweredLabels(const v1::Prediction& prediction);
std::vector<int32_t> HoldingLabels(const LabelledInput& input);

// Right answers among those whose label is known, and how far off those are whose value is known. An answer of a
// multi-label model is right where all its labels are.
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
