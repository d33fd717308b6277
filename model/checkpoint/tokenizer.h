// Text to token ids, as config.json says.
#ifndef EDGEWISE_MODEL_CHECKPOINT_TOKENIZER_H_
#define EDGEWISE_MODEL_CHECKPOINT_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"

namespace edgewise {

// Whether an entry of a vocabulary stands for no text: it is in angle brackets (<pad>).
bool HoldsAPlace(const std::string& entry);

// Immutable; may be used from any thread.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerConfig config);

  // INVALID_ARGUMENT: the model takes token ids only, or the text has what the vocabulary lacks; the message names it
  // and where it stands. Every byte sequence is taken; `char` wants valid UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) const;

  // The text of one generated token; `first`: nothing was generated before it (words are joined by a space). Empty for
  // tokens that stand for no text. `byte` and `char` tokens concatenate to the text; `byte` may split a character.
  std::string Decode(int32_t token_id, bool first) const;

 private:
  absl::StatusOr<std::vector<int32_t>> EncodeCharacters(const std::string& text) const;
  absl::StatusOr<std::vector<int32_t>> EncodeWords(const std::string& text) const;
  std::string ShowCharacters() const;  // of the vocabulary, escaped, runs of letters and digits as a-z, cut

  TokenizerConfig config_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_TOKENIZER_H_
