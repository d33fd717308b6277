// WordPiece: the longest token first, from the left.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/word_model.h"

namespace edgewise::tokenizers {
namespace {

class WordPiece : public WordModel {
 public:
  WordPiece(Vocabulary vocabulary, int32_t unknown, std::string prefix, size_t most_characters)
      : WordModel(std::move(vocabulary)),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        most_characters_(most_characters) {}

  absl::Status Tokenize(std::string_view word, Work& work, TokenSink& sink) const override {
    std::vector<Token> tokens;
    // A character has at most four bytes.
    bool split = word.size() <= 4 * most_characters_ && CountCharacters(word) <= most_characters_;
    if (split) {
      ASSIGN_OR_RETURN(split, Split(word, work, tokens));
    }
    if (!split) return sink.Push({unknown_, 0, static_cast<uint32_t>(word.size())});
    for (const Token& token : tokens) RETURN_IF_ERROR(sink.Push(token));
    return absl::OkStatus();
  }

 private:
  // Whether the whole word is made of tokens.
  absl::StatusOr<bool> Split(std::string_view word, Work& work, std::vector<Token>& tokens) const {
    std::string candidate;
    for (size_t begin = 0, end; begin < word.size(); begin = end) {
      candidate = begin > 0 ? prefix_ : "";
      const size_t front = candidate.size();
      end = begin + std::min(word.size() - begin, vocabulary().longest());
      while (end < word.size() && ContinuesCharacter(word[end])) --end;
      candidate += word.substr(begin, end - begin);
      int32_t id = -1;
      while (end > begin && (id = vocabulary().Id(candidate)) < 0) {
        RETURN_IF_ERROR(work.Charge(candidate.size() / 16 + 1));
        do --end;
        while (ContinuesCharacter(word[end]));
        candidate.resize(front + end - begin);
      }
      if (id < 0) return false;
      tokens.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    }
    return true;
  }

  const int32_t unknown_;
  const std::string prefix_;  // of the tokens that do not begin a word
  const size_t most_characters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WordModel>> ReadWordPiece(JsonObject& fields) {
  constexpr int32_t kMostCharacters = 10'000;
  const std::string unknown = RequiredString(fields, "unk_token");
  const std::string prefix = RequiredString(fields, "continuing_subword_prefix");
  const int32_t most_characters = fields.Integer("max_input_chars_per_word", 1, kMostCharacters);
  Vocabulary vocabulary = ReadVocabulary(fields);
  const int32_t id = vocabulary.Id(unknown);
  if (id < 0) fields.FailAt("unk_token", nlohmann::json(unknown), "vocab lacks it");
  RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<WordPiece>(std::move(vocabulary), id, prefix, most_characters);
}

}  // namespace edgewise::tokenizers
