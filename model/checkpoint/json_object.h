// Reads a JSON object strictly: every field has a type and a range, duplicate and unknown fields are errors.
#ifndef EDGEWISE_MODEL_CHECKPOINT_JSON_OBJECT_H_
#define EDGEWISE_MODEL_CHECKPOINT_JSON_OBJECT_H_

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise {

// Parses text: valid UTF-8, no duplicate keys, at most 16 levels deep. INVALID_ARGUMENT, naming the key or the byte.
absl::StatusOr<nlohmann::json> ParseStrictJson(const std::string& text);

// Reads the fields of one object and remembers which were asked for. The first error stays; later reads give defaults.
class JsonObject {
 public:
  // `path` is put before field names in messages: "attention[1]".
  JsonObject(const nlohmann::json& object, std::string path);

  bool Has(const std::string& field);
  int64_t Integer(const std::string& field, int64_t least, int64_t most);  // required
  int64_t Integer(const std::string& field, int64_t least, int64_t most, int64_t fallback);
  double Number(const std::string& field, double least, double most, double fallback);
  bool Boolean(const std::string& field, bool fallback);
  std::string String(const std::string& field, const std::string& fallback);
  // One of `names`; its index. Required where `fallback` is -1.
  int Choice(const std::string& field, const std::vector<std::string>& names, int fallback = -1);
  // The raw value, or null with an error when absent and required.
  const nlohmann::json& Value(const std::string& field, bool required);

  // Name of a field with its path, for messages of the caller's own.
  std::string Path(const std::string& field) const;
  void Fail(const std::string& message);  // keeps the first
  // Fails where one of the fields is given; they belong to `owner`.
  void Refuse(const std::vector<const char*>& fields, const std::string& owner);
  // OK when nothing failed and every field of the object was asked for.
  absl::Status Finish();

 private:
  const nlohmann::json* Find(const std::string& field, bool required);

  const nlohmann::json& object_;
  const std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

// Whether a value is an integer from `least` to `most`.
bool IsInteger(const nlohmann::json& value, int64_t least, int64_t most);

// A JSON value as messages show it, cut to 64 characters.
std::string ShowJson(const nlohmann::json& value);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_JSON_OBJECT_H_
