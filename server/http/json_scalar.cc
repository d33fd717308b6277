#include "server/http/json_scalar.h"

#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/field_error.h"
#include "http/bodies.pb.h"
#include "server/http/json_out.h"

namespace edgewise::server {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::optional<double> ToDouble(const JsonScalar& value, JsonDialect dialect) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&value)) return static_cast<double>(*number);
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr || dialect != JsonDialect::kProtobuf) return std::nullopt;
  if (*text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (*text == "Infinity") return std::numeric_limits<double>::infinity();
  if (*text == "-Infinity") return -std::numeric_limits<double>::infinity();
  double number;
  const bool plain = text->find_first_not_of("0123456789+-.eE") == std::string::npos;
  return plain && absl::SimpleAtod(*text, &number) && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

template <typename Integer>
std::optional<Integer> ToInteger(const JsonScalar& value, JsonDialect dialect) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return std::in_range<Integer>(*number) ? std::optional(static_cast<Integer>(*number)) : std::nullopt;
  }
  if (const auto* number = std::get_if<uint64_t>(&value)) {
    return std::in_range<Integer>(*number) ? std::optional(static_cast<Integer>(*number)) : std::nullopt;
  }
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && dialect == JsonDialect::kProtobuf) {
    if (Integer number; absl::SimpleAtoi(*text, &number)) return number;
  }
  const std::optional<double> number = ToDouble(value, dialect);
  // 2^63 and 2^64 are doubles, the largest integers are not.
  const double beyond = std::ldexp(1.0, std::numeric_limits<Integer>::digits);
  if (!number || *number != std::floor(*number) || *number >= beyond ||
      *number < static_cast<double>(std::numeric_limits<Integer>::min())) {
    return std::nullopt;
  }
  return static_cast<Integer>(*number);
}

// Standard or URL-safe, with or without its padding.
std::optional<std::string> ToBytes(const std::string& text) {
  std::string bytes;
  if (absl::Base64Unescape(text, &bytes) || absl::WebSafeBase64Unescape(text, &bytes)) return bytes;
  return std::nullopt;
}

template <typename Value>
void Put(const FieldDescriptor& field, Message& message, Value value,
         void (Reflection::*set)(Message*, const FieldDescriptor*, Value) const,
         void (Reflection::*add)(Message*, const FieldDescriptor*, Value) const) {
  const Reflection& reflection = *message.GetReflection();
  (reflection.*(field.is_repeated() ? add : set))(&message, &field, std::move(value));
}

constexpr size_t kMostShown = 32;  // bytes of a number

// The limits of fields, which are checked where a value of their type is used: $0 is max_new_tokens, $1 max_samples.
constexpr std::pair<const char*, const char*> kAllowed[] = {{"edgewise.http.CohereRerank.priority", "0"},
                                                            {"max_tokens", "an integer from 1 to $0"},
                                                            {"max_completion_tokens", "an integer from 1 to $0"},
                                                            {"max_new_tokens", "an integer from 1 to $0"},
                                                            {"samples", "an integer from 1 to $1"},
                                                            {"n", "an integer from 1 to 128"},
                                                            {"top_logprobs", "an integer from 0 to 20"},
                                                            {"alternatives", "an integer from 0 to 20"},
                                                            {"priority", "an integer from 0 to 3"},
                                                            {"max_edges", "an integer from 1 to 18446744073709551615"},
                                                            {"dimensions", "an integer from 1 to 4294967295"},
                                                            {"top_n", "an integer from 1 to 4294967295"},
                                                            {"max_density", "a number above 0, up to 1"},
                                                            {"temperature", "a number of 0 or more"},
                                                            {"tolerance", "a number of 0 or more"},
                                                            {"top_p", "a number from 0 to 1"},
                                                            {"min_p", "a number from 0 to 1"},
                                                            {"presence_penalty", "a number from -2 to 2"},
                                                            {"frequency_penalty", "a number from -2 to 2"},
                                                            {"repetition_penalty", "a number above 0, up to 100"}};

// Takes the value only where it returns true.
bool TrySet(const FieldDescriptor& field, JsonDialect dialect, JsonScalar& value, Message& message) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!std::holds_alternative<bool>(value)) return false;
      Put(field, message, std::get<bool>(value), &Reflection::SetBool, &Reflection::AddBool);
      return true;
    case FieldDescriptor::CPPTYPE_INT32:
      if (const auto number = ToInteger<int32_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetInt32, &Reflection::AddInt32);
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_INT64:
      if (const auto number = ToInteger<int64_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetInt64, &Reflection::AddInt64);
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_UINT32:
      if (const auto number = ToInteger<uint32_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetUInt32, &Reflection::AddUInt32);
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_UINT64:
      if (const auto number = ToInteger<uint64_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetUInt64, &Reflection::AddUInt64);
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (const auto number = ToDouble(value, dialect)) {
        Put(field, message, *number, &Reflection::SetDouble, &Reflection::AddDouble);
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto number = ToDouble(value, dialect);
      if (!number || (std::isfinite(*number) && std::isinf(static_cast<float>(*number)))) {
        return false;
      }
      Put(field, message, static_cast<float>(*number), &Reflection::SetFloat, &Reflection::AddFloat);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      auto* text = std::get_if<std::string>(&value);
      if (text == nullptr) return false;
      if (field.type() == FieldDescriptor::TYPE_BYTES) {
        std::optional<std::string> bytes = ToBytes(*text);
        if (!bytes) return false;
        *text = *std::move(bytes);
      }
      Put(field, message, std::move(*text), &Reflection::SetString, &Reflection::AddString);
      return true;
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* name = std::get_if<std::string>(&value);
      const EnumValueDescriptor* known = name != nullptr ? field.enum_type()->FindValueByName(*name) : nullptr;
      const std::optional<int32_t> number = known != nullptr  ? known->number()
                                            : name != nullptr ? std::nullopt
                                                              : ToInteger<int32_t>(value, JsonDialect::kPlain);
      if (!number) return false;
      Put(field, message, *number, &Reflection::SetEnumValue, &Reflection::AddEnumValue);
      return true;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return false;
}

}  // namespace

std::string ExpectedOf(const FieldDescriptor& field, bool element, const RequestLimits& limits) {
  if (field.is_repeated() && !element) return "a list";
  if (field.message_type() != nullptr) {
    return field.message_type() == http::Content::descriptor() ? "a string or a list" : "an object";
  }
  for (const auto& [name, allowed] : kAllowed) {
    if (field.name() == name || field.full_name() == name) {
      return absl::Substitute(allowed, limits.max_new_tokens, limits.max_samples);
    }
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_INT32:
      return "an integer of 32 bits";
    case FieldDescriptor::CPPTYPE_INT64:
      return "an integer of 64 bits";
    case FieldDescriptor::CPPTYPE_UINT32:
      return "an integer from 0 to 4294967295";
    case FieldDescriptor::CPPTYPE_UINT64:
      return "an integer from 0 to 18446744073709551615";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number of float32";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::string names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        absl::StrAppend(&names, field.enum_type()->value(i)->name(), ", ");
      }
      return names + "or the number of one of these";
    }
    default:
      return field.type() == FieldDescriptor::TYPE_BYTES ? "a string in base64" : "a string";
  }
}

std::string Instead(const JsonScalar& value, bool shows_text, const std::string& expected) {
  std::string shown;
  if (const auto* text = std::get_if<std::string>(&value)) {
    shown = shows_text ? Quoted(*text) : "a string";
  } else if (const auto* boolean = std::get_if<bool>(&value)) {
    shown = *boolean ? "true" : "false";
  } else if (const auto* number = std::get_if<double>(&value)) {
    shown = std::move(JsonOut().Number(*number)).Take();
  } else {
    const auto* negative = std::get_if<int64_t>(&value);
    shown = negative != nullptr ? absl::StrCat(*negative) : absl::StrCat(std::get<uint64_t>(value));
  }
  return absl::StrCat("is ", shown, "; expected ", expected);
}

std::string KindOfJson(const std::string& text) {
  const char first = text.empty() ? '\0' : text[0];
  return first == '{' ? "an object" : first == '[' ? "a list" : first == '"' ? "a string" : text.substr(0, kMostShown);
}

std::string SetScalar(const FieldDescriptor& field, JsonDialect dialect, JsonScalar value, const RequestLimits& limits,
                      Message& message) {
  if (TrySet(field, dialect, value, message)) return "";
  const bool shows_text =
      !field.is_repeated() && field.message_type() == nullptr && field.type() != FieldDescriptor::TYPE_BYTES;
  return Instead(value, shows_text, ExpectedOf(field, /*element=*/true, limits));
}

}  // namespace edgewise::server
