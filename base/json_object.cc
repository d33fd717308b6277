#include "base/json_object.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/did_you_mean.h"

namespace edgewise {
namespace {

using nlohmann::json;

constexpr size_t kShownCharacters = 64;

const json kNull;

// Appends a value as Python writes it, until the text is long enough for a message.
void AppendJson(const json& value, std::string& text) {
  const bool list = value.is_array();
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  } else if (list || value.is_object()) {
    text += list ? '[' : '{';
    for (auto entry = value.begin(); entry != value.end() && text.size() <= kShownCharacters; ++entry) {
      if (entry != value.begin()) text += ',';
      if (!list) absl::StrAppend(&text, ShowJson(json(entry.key())), ":");
      AppendJson(*entry, text);
    }
    text += list ? ']' : '}';
  } else {
    text += value.dump(-1, ' ', true, json::error_handler_t::replace);
  }
}

}  // namespace

bool IsInteger(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

std::string ShowJson(const json& value) {
  std::string text;
  AppendJson(value, text);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

JsonObject::JsonObject(const json& object, std::string path)
    : object_(object.is_object() ? object : kNull), path_(std::move(path)) {
  if (!object.is_object()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_.empty() ? "the file" : path_, " is ", ShowJson(object), "; an object is expected"));
  }
}

std::string JsonObject::Path(const std::string& field) const {
  return path_.empty() ? field : absl::StrCat(path_, ".", field);
}

void JsonObject::Fail(const std::string& message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(message);
}

void JsonObject::FailAt(const std::string& field, const json& found, const std::string& expected) {
  Fail(absl::StrCat(Path(field), " is ", ShowJson(found), "; ", expected));
}

void JsonObject::Refuse(const std::vector<const char*>& fields, const std::string& owner) {
  for (const char* field : fields) {
    if (Has(field)) Fail(absl::StrCat(Path(field), " is given; it belongs to ", owner));
  }
}

const json* JsonObject::Find(const std::string& field, bool required) {
  known_.insert(field);
  const auto found = object_.find(field);
  if (found != object_.end()) return &*found;
  if (required) Fail(absl::StrCat(Path(field), " is missing"));
  return nullptr;
}

bool JsonObject::Has(const std::string& field) { return Find(field, false) != nullptr; }

int32_t JsonObject::Integer(const std::string& field, int32_t least, int32_t most) {
  return Find(field, true) == nullptr ? least : Integer(field, least, most, least);
}

int32_t JsonObject::Integer(const std::string& field, int32_t least, int32_t most, int32_t fallback) {
  const json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (IsInteger(*value, least, most)) return value->get<int32_t>();
  FailAt(field, *value, absl::StrCat("allowed: an integer from ", least, " to ", most));
  return fallback;
}

double JsonObject::Number(const std::string& field, double least, double most, double fallback) {
  const json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < least ||
      value->get<double>() > most) {
    FailAt(field, *value, absl::StrCat("allowed: a number from ", least, " to ", most));
    return fallback;
  }
  return value->get<double>();
}

bool JsonObject::Boolean(const std::string& field, bool fallback) {
  const json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  FailAt(field, *value, "allowed: true, false");
  return fallback;
}

std::string JsonObject::String(const std::string& field, const std::string& fallback) {
  const json* value = Find(field, false);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  FailAt(field, *value, "a string is expected");
  return fallback;
}

int JsonObject::Choice(const std::string& field, const std::vector<std::string>& names, int fallback) {
  const json* value = Find(field, fallback < 0);
  if (value == nullptr) return std::max(fallback, 0);
  for (size_t i = 0; value->is_string() && i < names.size(); ++i) {
    if (value->get<std::string>() == names[i]) return static_cast<int>(i);
  }
  FailAt(field, *value, absl::StrCat("allowed: ", absl::StrJoin(names, ", ")));
  return std::max(fallback, 0);
}

const json& JsonObject::Value(const std::string& field, bool required) {
  const json* value = Find(field, required);
  return value == nullptr ? kNull : *value;
}

absl::Status JsonObject::Finish() {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("unknown field ", Path(ShowJson(json(name))), DidYouMean(name, known_)));
  }
  return absl::OkStatus();
}

void JsonObject::FinishInto(JsonObject& parent) {
  const absl::Status status = Finish();
  if (!status.ok()) parent.Fail(std::string(status.message()));
}

}  // namespace edgewise
