// Between text and token ids, by the tokenizer of config.json.
#ifndef EDGEWISE_MODEL_TOKENIZERS_TOKENIZER_H_
#define EDGEWISE_MODEL_TOKENIZERS_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "model/config/config.h"

namespace edgewise {

// Whether an entry of a vocabulary is in angle brackets (<pad>), and so stands for no text.
bool HoldsAPlace(const std::string& entry);

class TokenIds;

// The error of a text that has more tokens than the model takes. The field is text.
absl::Status TooManyTokens(size_t most);

// Immutable; may be used from any thread.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerConfig config);

  // INVALID_ARGUMENT: the model has no tokenizer, or the vocabulary lacks a word or character of the text (the message
  // names it and its byte), or `char` meets a byte that is not valid UTF-8; or the text has more than `most` tokens (0:
  // any number), which is found at the first one too many. `byte` takes any bytes. It ends where `bounds` say so.
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text, size_t most = 0,
                                              WorkBounds& bounds = NoBounds()) const;

  // The text of one generated token, empty where the token stands for no text. The texts of all tokens concatenate to
  // the generated text: every word but the `first` brings the space before it. A token of `byte` may be a part of a
  // character.
  std::string Decode(int32_t token_id, bool first) const;

 private:
  absl::Status EncodeCharacters(const std::string& text, TokenIds& ids) const;
  absl::Status EncodeWords(const std::string& text, TokenIds& ids) const;
  std::string ShowCharacters() const;  // the vocabulary, escaped and cut, with runs of letters and digits as a-z

  TokenizerConfig config_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_TOKENIZERS_TOKENIZER_H_
