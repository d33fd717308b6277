// A strict reader of JSON objects: each field has a type and a range; unknown fields are errors.
#ifndef EDGEWISE_BASE_JSON_OBJECT_H_
#define EDGEWISE_BASE_JSON_OBJECT_H_

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace edgewise {

// Reads the fields of one object and remembers which fields were read. The first error is kept. A field that is missing
// or wrong reads as its fallback, or as the least or first value allowed. The object must outlive the reader.
class JsonObject {
 public:
  // Messages put `path` ("attention[1]") before the names of fields. Empty: the object is the whole file.
  JsonObject(const nlohmann::json& object, std::string path);

  bool Has(const std::string& field);
  int32_t Integer(const std::string& field, int32_t least, int32_t most);  // required
  int32_t Integer(const std::string& field, int32_t least, int32_t most, int32_t fallback);
  double Number(const std::string& field, double least, double most, double fallback);
  bool Boolean(const std::string& field, bool fallback);
  std::string String(const std::string& field, const std::string& fallback);
  // The index of the field's value in `names`. The field is required where `fallback` is -1.
  int Choice(const std::string& field, const std::vector<std::string>& names, int fallback = -1);
  // The value as it is; null where the field is absent, which is an error where it is required.
  const nlohmann::json& Value(const std::string& field, bool required);

  // The name of a field with its path, for a message that the caller makes.
  std::string Path(const std::string& field) const;
  void Fail(const std::string& message);
  // Fails with "<field with its path> is <found>; <expected>".
  void FailAt(const std::string& field, const nlohmann::json& found, const std::string& expected);
  // Fails where the object has one of `fields`, which belong to `owner`.
  void Refuse(const std::vector<const char*>& fields, const std::string& owner);
  // OK where nothing failed.
  const absl::Status& status() const { return status_; }
  // OK where nothing failed and every field of the object was read.
  absl::Status Finish();
  // Finish for an object inside `parent`: its error becomes the parent's.
  void FinishInto(JsonObject& parent);

 private:
  const nlohmann::json* Find(const std::string& field, bool required);

  const nlohmann::json& object_;
  const std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

// Whether a value is an integer from `least` to `most`.
bool IsInteger(const nlohmann::json& value, int64_t least, int64_t most);

// A JSON value as messages show it, cut after 64 characters.
std::string ShowJson(const nlohmann::json& value);

}  // namespace edgewise

#endif  // EDGEWISE_BASE_JSON_OBJECT_H_
