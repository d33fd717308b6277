#include "model/tokenizers/fields.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/utf8.h"

namespace edgewise::tokenizers {

using nlohmann::json;

absl::Status Steps::Add(const std::string& path) {
  if (++count_ <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " is one step too many; allowed are at most ", kMost,
                                                 " in one part of the file, each Sequence one of them"));
}

int ReadType(JsonObject& object, const std::vector<std::string>& served) {
  const json& type = object.Value("type", true);
  for (size_t i = 0; type.is_string() && i < served.size(); ++i) {
    if (type.get<std::string>() == served[i]) return static_cast<int>(i);
  }
  if (!type.is_null()) object.FailAt("type", type, absl::StrCat("served are ", absl::StrJoin(served, ", ")));
  return -1;
}

bool RequiredBoolean(JsonObject& object, const std::string& field) {
  object.Value(field, true);
  return object.Boolean(field, false);
}

std::string RequiredString(JsonObject& object, const std::string& field) {
  object.Value(field, true);
  return object.String(field, "");
}

std::optional<std::string> OptionalString(JsonObject& object, const std::string& field) {
  const json& value = object.Value(field, false);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) object.FailAt(field, value, "a string or null is expected");
  return object.String(field, "");
}

char32_t RequiredCharacter(JsonObject& object, const std::string& field) {
  const std::string text = RequiredString(object, field);
  if (CountCharacters(text) == 1) return CharacterAt(text, 0).code;
  if (object.Has(field)) object.FailAt(field, json(text), "one character is expected");
  return 0;
}

std::string RequiredLiteral(JsonObject& object) {
  JsonObject pattern(object.Value("pattern", true), object.Path("pattern"));
  const std::string literal = RequiredString(pattern, "String");
  if (literal.empty()) pattern.Fail(absl::StrCat(pattern.Path("String"), " is empty"));
  if (!object.Value("pattern", true).is_null()) pattern.FinishInto(object);
  return literal;
}

std::optional<Pattern> RequiredPattern(JsonObject& object) {
  const json& value = object.Value("pattern", true);
  if (value.is_null()) return std::nullopt;
  if (!value.is_object() || !value.contains("Regex")) return Pattern::Literal(RequiredLiteral(object));
  JsonObject pattern(value, object.Path("pattern"));
  absl::StatusOr<Pattern> read = Pattern::Expression(RequiredString(pattern, "Regex"));
  if (!read.ok()) pattern.Fail(absl::StrCat(pattern.Path("Regex"), " ", read.status().message()));
  pattern.FinishInto(object);
  if (!read.ok()) return std::nullopt;
  return *std::move(read);
}

}  // namespace edgewise::tokenizers
