// The next token of a generated text, from the model's distribution.
#ifndef EDGEWISE_KERNELS_TOKEN_CHOICE_H_
#define EDGEWISE_KERNELS_TOKEN_CHOICE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace edgewise {

struct TokenChoice {
  double temperature = 0.0;  // 0: the most probable token
  uint32_t top_k = 0;        // 0: off
  double top_p = 0.0;        // 0: off
  int32_t excluded = -1;     // a token that is never chosen; -1: none
  double uniform = 0.0;      // in [0, 1): decides where temperature > 0
  uint32_t samples = 1;      // rows of logits: the token comes from the mean of their distributions
};

struct ChosenToken {
  int32_t id = -1;
  double log_probability = 0.0;  // ln of the mean probability, before temperature, top_k and top_p
  bool finite = false;           // the rows' logits and log_probability are; else the others may be anything
};

// One token id. Where temperature > 0: probabilities to the power of 1 / temperature, of which the top_k largest stay,
// and of those the fewest that hold top_p of their sum; then the first whose cumulative sum in descending order of
// probability, ties to the lower id, is above `uniform` times the whole (docs/random-numbers.md).
int32_t ChooseToken(const std::vector<double>& probabilities, const TokenChoice& choice);

// Tokens that are chosen from logits that come row by row; made by Backend::MakeTokenChooser.
class TokenChooser {
 public:
  virtual ~TokenChooser() = default;
};

// In host memory.
class HostTokenChooser : public TokenChooser {
 public:
  HostTokenChooser(std::span<const TokenChoice> choices, int64_t vocabulary)
      : choices_(choices.begin(), choices.end()), mean_(static_cast<size_t>(vocabulary)), more_(mean_.size()) {}
  void Add(ConstMatrix logits);
  const std::vector<ChosenToken>& chosen() const { return chosen_; }

 private:
  const std::vector<TokenChoice> choices_;
  std::vector<ChosenToken> chosen_;
  std::vector<double> mean_, more_;  // of the samples so far; of one
  uint32_t samples_ = 0;             // so far
  bool finite_ = true;               // they are
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_TOKEN_CHOICE_H_
