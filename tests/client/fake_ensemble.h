// Responses of a fake ensemble, computed straight from the formulas in edgewise/client/ensemble.h.
#ifndef EDGEWISE_TESTS_CLIENT_FAKE_ENSEMBLE_H_
#define EDGEWISE_TESTS_CLIENT_FAKE_ENSEMBLE_H_

#include <string>
#include <vector>

#include "edgewise/v1/inference.pb.h"

namespace edgewise::testing {

enum class Task { kClassification, kMultiLabel, kTokens, kRegression, kLanguage };

inline constexpr int kLabels = 5;
inline constexpr int kPositions = 6;
inline constexpr int kPad = 2;     // this position is a pad
inline constexpr int kScored = 7;  // tokens of a text

// Of the labels.
const std::vector<std::string>& Names();

// Samples `first` to `first + count - 1` of two inputs, with each_sample, layer_stats, key_degrees and top_k = 3.
v1::PredictResponse MakeResponse(Task task, int first, int count, bool logits = true);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CLIENT_FAKE_ENSEMBLE_H_
