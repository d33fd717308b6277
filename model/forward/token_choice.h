// The next token of a generated text, from the model's distribution.
#ifndef EDGEWISE_MODEL_FORWARD_TOKEN_CHOICE_H_
#define EDGEWISE_MODEL_FORWARD_TOKEN_CHOICE_H_

#include <cstdint>
#include <vector>

namespace edgewise {

struct TokenChoice {
  double temperature = 0.0;  // 0: the most probable token
  uint32_t top_k = 0;        // 0: off
  double top_p = 0.0;        // 0: off
  int32_t excluded = -1;     // a token that is never chosen; -1: none
};

// One token id. `uniform` in [0, 1) decides where temperature > 0: probabilities to the power of 1 / temperature, of
// which the top_k largest stay, and of those the fewest that hold top_p of their sum; then the first whose cumulative
// sum in descending order of probability, ties to the lower id, is above `uniform` times the whole
// (docs/random-numbers.md).
int32_t ChooseToken(const std::vector<double>& probabilities, const TokenChoice& choice, double uniform);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_TOKEN_CHOICE_H_
