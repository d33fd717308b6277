#include "model/chat/arguments.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace edgewise::chat {
namespace {

using nlohmann::json;

constexpr char kField[] = "template_arguments";
constexpr size_t kBytesOfValue = 160;         // beside its text, with its name and what grows
constexpr size_t kReservedAtOnce = 64 << 10;  // bytes
constexpr size_t kStepsOfValue = 64, kShown = 200;

// Builds values in the order of the text, which json::parse does not keep.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(WorkBounds& bounds) : meter_(bounds), held_(bounds) {}

  const absl::Status& status() const { return status_; }
  Value TakeValue() { return std::move(whole_); }
  ReservedBytes TakeHeld() { return std::move(held_); }

  bool null() override { return Put({None()}, 0); }
  bool boolean(bool value) override { return Put({value}, 0); }
  bool number_integer(json::number_integer_t value) override { return Put({int64_t{value}}, 0); }
  bool number_unsigned(json::number_unsigned_t value) override {
    return value <= static_cast<uint64_t>(INT64_MAX) ? Put({static_cast<int64_t>(value)}, 0) : TooLarge();
  }
  bool number_float(json::number_float_t value, const std::string& text) override {
    return text.find_first_of(".eE") != std::string::npos ? Put({value}, 0) : TooLarge();
  }
  bool string(std::string& value) override {
    const size_t bytes = value.size();
    return Put(Value::Of(std::move(value)), bytes);
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (!Begin()) return false;
    open_.back().map = std::make_shared<Map>();
    return true;
  }
  bool start_array(size_t) override { return Begin(); }
  bool key(std::string& key) override {
    if (!open_.back().keys.insert(key).second) return Fail(absl::StrCat("has the field ", Quoted(key), " twice"));
    open_.back().key = key;
    return Hold(2 * key.size());
  }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    std::string message = std::string(error.what()).substr(0, kShown);
    for (char& c : message)
      c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';  // it may end in a character
    return Fail(absl::StrCat("is not JSON: ", message));
  }

 private:
  struct Open {
    List list;
    std::shared_ptr<Map> map;  // of an object
    std::set<std::string> keys;
    std::string key;  // of the value that comes
  };

  bool Fail(const std::string& problem) { return Fail(FieldError(kField, problem)); }
  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool TooLarge() { return Fail("has a whole number beyond 64 bits"); }
  bool Hold(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= held_.bytes()) return true;
    absl::Status status = held_.Resize(bytes_ + kReservedAtOnce);
    return status.ok() || Fail(std::move(status));
  }
  bool Begin() {
    if (open_.size() == Arguments::kMaxDepth) {
      return Fail(absl::StrCat("is nested deeper than ", Arguments::kMaxDepth, " levels"));
    }
    open_.emplace_back();
    return true;
  }
  bool End() {
    Open done = std::move(open_.back());
    open_.pop_back();
    return Put(done.map != nullptr ? Value{std::move(done.map)} : Value::Of(std::move(done.list)), 0);
  }
  bool Put(Value value, size_t text) {
    absl::Status status = meter_.Charge(kStepsOfValue);
    if (!status.ok()) return Fail(std::move(status));
    if (!Hold(kBytesOfValue + text)) return false;
    if (open_.empty()) {
      whole_ = std::move(value);
    } else if (open_.back().map != nullptr) {
      open_.back().map->entries.emplace_back(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().list.push_back(std::move(value));
    }
    return true;
  }

  WorkMeter meter_;
  ReservedBytes held_;
  size_t bytes_ = 0;
  std::vector<Open> open_;  // objects and lists that have no end yet
  Value whole_;
  absl::Status status_;
};

bool IsName(const std::string& name) {
  const auto letter = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), letter);
}

// Null, or a list of objects.
bool IsListOfObjects(const Value& value) {
  if (value.list() == nullptr) return value.As<None>() != nullptr;
  return std::all_of(value.list()->begin(), value.list()->end(),
                     [](const Value& entry) { return entry.map() != nullptr; });
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Read(const std::string& text, WorkBounds& bounds) {
  Arguments arguments;
  if (text.empty()) return arguments;
  REFUSE_IF(text.size() > kMaxBytes, kField, "has ", text.size(), " bytes; allowed are at most ", kMaxBytes);
  Builder builder(bounds);
  SaxParse(text, builder);
  RETURN_IF_ERROR(builder.status());
  const Value whole = builder.TakeValue();
  REFUSE_IF(whole.map() == nullptr, kField, "is ", whole.KindName(), "; a JSON object is expected");
  arguments.held_ = builder.TakeHeld();
  arguments.values_ = std::move(whole.map()->entries);
  for (const auto& [name, value] : arguments.values_) {
    REFUSE_IF(!IsName(name), kField, "has the field ", Quoted(name), "; names have letters, digits and _");
    REFUSE_IF((name == "tools" || name == "documents") && !IsListOfObjects(value), absl::StrCat(kField, ".", name),
              "is ", value.KindName(), "; a list of JSON objects is expected");
  }
  return arguments;
}

const Value* Arguments::Find(std::string_view name) const {
  const auto found =
      std::find_if(values_.begin(), values_.end(), [&](const auto& argument) { return argument.first == name; });
  return found == values_.end() ? nullptr : &found->second;
}

}  // namespace edgewise::chat
