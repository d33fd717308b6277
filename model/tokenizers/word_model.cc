#include "model/tokenizers/word_model.h"

#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

absl::StatusOr<std::unique_ptr<WordModel>> ReadWordModel(const nlohmann::json& object, const std::string& path) {
  JsonObject fields(object, path);
  switch (ReadType(fields, {"WordPiece", "BPE", "Unigram", "WordLevel"})) {
    case 0:
      return ReadWordPiece(fields);
    case 1:
      return ReadBpe(fields);
    case 2:
      return ReadUnigram(fields);
    case 3:
      return ReadWordLevel(fields);
    default:
      return fields.Finish();
  }
}

}  // namespace edgewise::tokenizers
