#include "model/checkpoint/json_object.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "text/did_you_mean.h"

namespace edgewise {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxObjects =
    300'000;  // each takes some hundred bytes once it is parsed; files have one a tensor or token
constexpr size_t kShownCharacters = 64;
constexpr size_t kShownError = 200;

const json kNull;

// Finds what JSON permits and we refuse, in one pass. (A callback of json::parse would look at all members of an object
// whenever one of them ends: quadratic in the number of tensors.)
class StrictCheck : public nlohmann::json_sax<json> {
 public:
  const std::string& problem() const { return problem_; }  // empty: none

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(size_t) override {
    if (++objects_ > kMaxObjects) return Fail(absl::StrCat("has more than ", kMaxObjects, " objects {...}"));
    return Open();
  }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    return keys_.back().insert(key).second || Fail(absl::StrCat("key ", ShowJson(key), " stands twice in one object"));
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    std::string message = std::string(error.what()).substr(0, kShownError);
    for (char& c : message) c = absl::ascii_isprint(c) ? c : '?';  // the text may be no UTF-8
    return Fail(absl::StrCat("not valid JSON: ", message));
  }

 private:
  bool Open() {
    keys_.emplace_back();
    return keys_.size() <= kMaxDepth || Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // of each object or array that is still open
  size_t objects_ = 0;
  std::string problem_;
};

}  // namespace

absl::StatusOr<json> ParseStrictJson(const std::string& text) {
  const size_t nul = text.find('\0');  // where the parser would stop
  if (nul != std::string::npos) return absl::InvalidArgumentError(absl::StrCat("byte ", nul, " is a NUL character"));
  StrictCheck check;
  json::sax_parse(text, &check);
  if (!check.problem().empty()) return absl::InvalidArgumentError(check.problem());
  return json::parse(text);
}

bool IsInteger(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

std::string ShowJson(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
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
