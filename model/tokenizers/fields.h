// Readers of fields that the parts of tokenizer.json share.
#ifndef EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_
#define EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json_object.h"
#include "model/tokenizers/pattern.h"

namespace edgewise::tokenizers {

// Larger ids are refused: vocabularies of more than 16 million entries are broken files.
constexpr int32_t kMostIds = 1 << 24;

// The steps of a part of the file, each Sequence one of them.
class Steps {
 public:
  static constexpr int kMost = 100;  // of one part
  // One more. INVALID_ARGUMENT: that is too many; `path` is where it stands.
  absl::Status Add(const std::string& path);

 private:
  int count_ = 0;
};

// The index of the object's field "type" in `served`, or -1, and then the reader has failed.
int ReadType(JsonObject& object, const std::vector<std::string>& served);

// Fields that must be there.
bool RequiredBoolean(JsonObject& object, const std::string& field);
std::string RequiredString(JsonObject& object, const std::string& field);

// A string or null; nothing where it is null or absent.
std::optional<std::string> OptionalString(JsonObject& object, const std::string& field);

// A string of exactly one character. Fails otherwise, and is then U+0000.
char32_t RequiredCharacter(JsonObject& object, const std::string& field);

// The field "pattern": {"String": ...} or {"Regex": ...}. Nothing where it is wrong, and then the reader has failed.
std::optional<Pattern> RequiredPattern(JsonObject& object);
// The same where only {"String": ...} is allowed.
std::string RequiredLiteral(JsonObject& object);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_
