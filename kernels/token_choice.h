// The next token of a generated text, from the model's distribution (docs/random-numbers.md, "The choice of a token").
#ifndef EDGEWISE_KERNELS_TOKEN_CHOICE_H_
#define EDGEWISE_KERNELS_TOKEN_CHOICE_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace edgewise {

// The losses of tokens that the text has already. A score is ln of the mean probability.
struct TokenPenalties {
  double presence = 0.0;    // is subtracted from the score of a token that was written,
  double frequency = 0.0;   // and this for each time; then the score of a token of the prompt or of those written is
  double repetition = 1.0;  // divided by this where it is positive, multiplied where it is not
  std::map<int32_t, uint32_t> seen;  // tokens of the prompt and those written: how often they were written

  bool neutral() const { return presence == 0.0 && frequency == 0.0 && repetition == 1.0; }
};

struct TokenChoice {
  double temperature = 0.0;                   // 0: the most probable token
  uint32_t top_k = 0;                         // 0: off
  double top_p = 0.0;                         // 0: off
  int32_t excluded = -1;                      // a token that is never chosen; -1: none
  double uniform = 0.0;                       // in [0, 1): decides where temperature > 0
  uint32_t samples = 1;                       // rows of logits: the token comes from the mean of their distributions
  double min_p = 0.0;                         // 0: off
  uint32_t alternatives = 0;                  // the most probable tokens that are reported
  const TokenPenalties* penalties = nullptr;  // null: none; outlives the choice

  // Whether the choice needs more than a device's kernels do.
  bool on_host() const { return penalties != nullptr || min_p > 0.0; }
};

struct ChosenToken {
  int32_t id = -1;
  double log_probability = 0.0;     // ln of the mean probability, before penalties, temperature, top_k, top_p, min_p
  double predictive_entropy = 0.0;  // nats, of the mean; before these too
  double mutual_information = 0.0;  // nats: that, less the mean of the samples' entropies; 0 for one sample
  bool finite = false;              // the rows' logits and log_probability are; else the others may be anything
};

// A token and ln of its mean probability.
struct TokenProbability {
  int32_t id = -1;
  double log_probability = 0.0;
};
// By falling probability, of equal ones the lower id first; without the excluded one and those of probability 0.
using TokenAlternatives = std::vector<TokenProbability>;

// `count` of them, or as many as there are.
TokenAlternatives MostProbable(std::span<const double> probabilities, uint32_t count, int32_t excluded);

// One token id. Scores after penalties, if there are any, else probabilities. Where temperature > 0: probabilities to
// the power of 1 / temperature, of which the top_k largest stay, of those the fewest that hold top_p of their sum, and
// of those the ones that are at least min_p of the largest; then the first whose cumulative sum in descending order of
// probability, ties to the lower id, is above `uniform` times the whole (docs/random-numbers.md).
int32_t ChooseToken(const std::vector<double>& probabilities, const TokenChoice& choice);

// Tokens that are chosen from logits that come row by row; made by Backend::MakeTokenChooser.
class TokenChooser {
 public:
  virtual ~TokenChooser() = default;
  // Those of each choice, once ChosenTokens has returned; anything where it is not finite.
  virtual const std::vector<TokenAlternatives>& alternatives() const = 0;
};

// In host memory.
class HostTokenChooser : public TokenChooser {
 public:
  HostTokenChooser(std::span<const TokenChoice> choices, int64_t vocabulary)
      : choices_(choices.begin(), choices.end()), mean_(static_cast<size_t>(vocabulary)), more_(mean_.size()) {}
  void Add(ConstMatrix logits);
  const std::vector<ChosenToken>& chosen() const { return chosen_; }
  const std::vector<TokenAlternatives>& alternatives() const override { return alternatives_; }

 private:
  void Choose(const TokenChoice& choice);

  const std::vector<TokenChoice> choices_;
  std::vector<ChosenToken> chosen_;
  std::vector<TokenAlternatives> alternatives_;
  std::vector<double> mean_, more_;  // of the samples so far; of one
  uint32_t samples_ = 0;             // so far
  double entropies_ = 0.0;           // the sum of theirs
  bool finite_ = true;               // they are
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_TOKEN_CHOICE_H_
