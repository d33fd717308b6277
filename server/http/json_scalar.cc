#include "server/http/json_scalar.h"

#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"

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

}  // namespace

const char* SetScalar(const FieldDescriptor& field, JsonDialect dialect, JsonScalar value, Message& message) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!std::holds_alternative<bool>(value)) return "true or false";
      Put(field, message, std::get<bool>(value), &Reflection::SetBool, &Reflection::AddBool);
      return nullptr;
    case FieldDescriptor::CPPTYPE_INT32:
      if (const auto number = ToInteger<int32_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetInt32, &Reflection::AddInt32);
        return nullptr;
      }
      return "an integer of 32 bits";
    case FieldDescriptor::CPPTYPE_INT64:
      if (const auto number = ToInteger<int64_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetInt64, &Reflection::AddInt64);
        return nullptr;
      }
      return "an integer of 64 bits";
    case FieldDescriptor::CPPTYPE_UINT32:
      if (const auto number = ToInteger<uint32_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetUInt32, &Reflection::AddUInt32);
        return nullptr;
      }
      return "an integer from 0 to 4294967295";
    case FieldDescriptor::CPPTYPE_UINT64:
      if (const auto number = ToInteger<uint64_t>(value, dialect)) {
        Put(field, message, *number, &Reflection::SetUInt64, &Reflection::AddUInt64);
        return nullptr;
      }
      return "an integer from 0 to 18446744073709551615";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (const auto number = ToDouble(value, dialect)) {
        Put(field, message, *number, &Reflection::SetDouble, &Reflection::AddDouble);
        return nullptr;
      }
      return "a number";
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto number = ToDouble(value, dialect);
      if (!number || (std::isfinite(*number) && std::isinf(static_cast<float>(*number)))) {
        return "a number of float32";
      }
      Put(field, message, static_cast<float>(*number), &Reflection::SetFloat, &Reflection::AddFloat);
      return nullptr;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      auto* text = std::get_if<std::string>(&value);
      if (text == nullptr) return "a string";
      if (field.type() == FieldDescriptor::TYPE_BYTES) {
        std::optional<std::string> bytes = ToBytes(*text);
        if (!bytes) return "a string in base64";
        *text = *std::move(bytes);
      }
      Put(field, message, std::move(*text), &Reflection::SetString, &Reflection::AddString);
      return nullptr;
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* name = std::get_if<std::string>(&value);
      const EnumValueDescriptor* known = name != nullptr ? field.enum_type()->FindValueByName(*name) : nullptr;
      const std::optional<int32_t> number = known != nullptr  ? known->number()
                                            : name != nullptr ? std::nullopt
                                                              : ToInteger<int32_t>(value, JsonDialect::kPlain);
      if (!number) return "a name of the enum, or its number";
      Put(field, message, *number, &Reflection::SetEnumValue, &Reflection::AddEnumValue);
      return nullptr;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "an object";
}

}  // namespace edgewise::server
