// How far the roundings of a device in bf16 move an answer.
#ifndef EDGEWISE_TESTS_MODEL_ROUNDED_MODEL_H_
#define EDGEWISE_TESTS_MODEL_ROUNDED_MODEL_H_

#include <string>
#include <vector>

#include "model/forward/pass.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {

// [words] The probabilities of the token behind an input, from the logits of its samples.
std::vector<double> NextProbabilities(const InputResult& result);

// The relative difference of two lists of numbers, where it is largest.
double Distance(const std::vector<double>& found, const std::vector<double>& expected);

// A language model twice, each with every product and sum in float64 and each result rounded to float32: as it is, and
// with the operands rounded to bfloat16 that a GPU with --precision=bf16 rounds. These are both operands of products,
// queries, keys and values, and the weights of attention where values are multiplied by them.
class RoundedModel {
 public:
  explicit RoundedModel(const std::string& folder);

  // [words] The probabilities of the token behind an input.
  std::vector<double> Exact(const ModelInput& input) const { return NextProbabilities(RunOne(*exact_, input)); }
  std::vector<double> Rounded(const ModelInput& input) const { return NextProbabilities(RunOne(*rounded_, input)); }

 private:
  const LoadedModel exact_, rounded_;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_ROUNDED_MODEL_H_
