// Readers of fields that the parts of tokenizer.json share.
#ifndef EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_
#define EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint/json_object.h"
#include "model/tokenizers/pattern.h"

namespace edgewise::tokenizers {

// Larger ids are refused: vocabularies of more than 16 million entries are broken files.
constexpr int32_t kMostIds = 1 << 24;

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

// The field "behavior" of Split and Punctuation.
SplitBehavior ReadBehavior(JsonObject& object, bool required);

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_FIELDS_H_
