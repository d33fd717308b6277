// The models of tokenizer.json: from a word to the ids of its parts.
#ifndef EDGEWISE_MODEL_TOKENIZERS_WORD_MODEL_H_
#define EDGEWISE_MODEL_TOKENIZERS_WORD_MODEL_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json_object.h"
#include "model/tokenizers/vocabulary.h"
#include "model/tokenizers/work.h"

namespace edgewise::tokenizers {

// Bytes [begin, end) of the word.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;
};

// Takes the tokens of a word in their order. An error ends the work with it.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual absl::Status Push(const Token& token) = 0;
  // The word has at least this many tokens that were not pushed yet.
  virtual absl::Status AtLeast(size_t tokens) = 0;
};

// Immutable; may be used from any thread.
class WordModel {
 public:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~WordModel() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Pushes the tokens of `word`, which is valid UTF-8 and not empty. The time is n log n in its length. Ends as the
  // bounds of `work` say. INVALID_ARGUMENT: it has a character that the vocabulary lacks, and there is no token for
  // what is unknown.
  virtual absl::Status Tokenize(std::string_view word, Work& work, TokenSink& tokens) const = 0;
  // The text that `tokenizers` says the token has, a view into the vocabulary or into the word it came from.
  virtual std::string_view Text(const Token& token, std::string_view) const { return *vocabulary_.Token(token.id); }

 private:
  const Vocabulary vocabulary_;
};

// From the object "model" of tokenizer.json. INVALID_ARGUMENT names the field that is missing, wrong or not served.
absl::StatusOr<std::unique_ptr<WordModel>> ReadWordModel(const nlohmann::json& object, const std::string& path);
// Readers of one type each; ReadWordModel has read "type".
absl::StatusOr<std::unique_ptr<WordModel>> ReadWordPiece(JsonObject& fields);
absl::StatusOr<std::unique_ptr<WordModel>> ReadBpe(JsonObject& fields);
absl::StatusOr<std::unique_ptr<WordModel>> ReadUnigram(JsonObject& fields);
absl::StatusOr<std::unique_ptr<WordModel>> ReadWordLevel(JsonObject& fields);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_WORD_MODEL_H_
