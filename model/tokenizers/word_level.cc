// WordLevel: a word is one token, or the one for what is unknown.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/word_model.h"

namespace edgewise::tokenizers {
namespace {

class WordLevel : public WordModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unknown)
      : WordModel(std::move(vocabulary)),
        unknown_(std::move(unknown)),
        unknown_id_(WordModel::vocabulary().Id(unknown_)) {}

  absl::Status Tokenize(std::string_view word, Work& work, TokenSink& sink) const override {
    RETURN_IF_ERROR(work.Charge(word.size()));
    const int32_t id = word.size() > vocabulary().longest() ? -1 : vocabulary().Id(word);
    if (id < 0 && unknown_id_ < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the vocabulary lacks the word ",
                                                     ShowJson(std::string(word.substr(0, 64))), ", and unk_token (",
                                                     ShowJson(unknown_), ") too"));
    }
    return sink.Push({id < 0 ? unknown_id_ : id, 0, static_cast<uint32_t>(word.size())});
  }

 private:
  const std::string unknown_;
  const int32_t unknown_id_;  // -1: the vocabulary lacks it
};

}  // namespace

absl::StatusOr<std::unique_ptr<WordModel>> ReadWordLevel(JsonObject& fields) {
  const std::string unknown = RequiredString(fields, "unk_token");
  Vocabulary vocabulary = ReadVocabulary(fields);
  RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
}

}  // namespace edgewise::tokenizers
