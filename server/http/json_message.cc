#include "server/http/json_message.h"

#include <cmath>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class Writer {
 public:
  Writer(JsonDialect dialect, JsonOut& json) : protobuf_(dialect == JsonDialect::kProtobuf), json_(json) {}

  void WriteObject(const Message& message) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    const Reflection& reflection = *message.GetReflection();
    json_.BeginObject();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const int size = field.is_repeated() ? reflection.FieldSize(message, &field) : -1;
      const bool is_set = size < 0 ? reflection.HasField(message, &field) : size > 0;
      const bool is_message = size < 0 && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      if (!is_set && (protobuf_ || is_message)) continue;
      json_.Key(protobuf_ ? field.json_name() : field.name());
      field.is_map() ? WriteMap(message, field, size)
      : size < 0     ? WriteValue(message, field, -1)
                     : WriteList(message, field, size);
    }
    json_.EndObject();
  }

 private:
  void WriteList(const Message& message, const FieldDescriptor& field, int size) {
    json_.BeginArray();
    for (int i = 0; i < size; ++i) WriteValue(message, field, i);
    json_.EndArray();
  }

  // Its keys are strings.
  void WriteMap(const Message& message, const FieldDescriptor& field, int size) {
    json_.BeginObject();
    for (int i = 0; i < size; ++i) {
      const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
      json_.Key(entry.GetReflection()->GetString(entry, field.message_type()->map_key()));
      WriteValue(entry, *field.message_type()->map_value(), -1);
    }
    json_.EndObject();
  }

  // `index`: of an element; -1: the field is not repeated.
  void WriteValue(const Message& message, const FieldDescriptor& field, int index) {
    const Reflection& reflection = *message.GetReflection();
    const auto get = [&](auto one, auto element) {
      return index < 0 ? (reflection.*one)(message, &field) : (reflection.*element)(message, &field, index);
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        json_.Bool(get(&Reflection::GetBool, &Reflection::GetRepeatedBool));
        return;
      case FieldDescriptor::CPPTYPE_INT32:
        json_.Integer(get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        json_.Unsigned(get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
        return;
      case FieldDescriptor::CPPTYPE_INT64:
        WriteLong(get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        WriteLong(get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        WriteEnum(field, get(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue));
        return;
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string scratch;
        const std::string& text = index < 0 ? reflection.GetStringReference(message, &field, &scratch)
                                            : reflection.GetRepeatedStringReference(message, &field, index, &scratch);
        const bool bytes = protobuf_ && field.type() == FieldDescriptor::TYPE_BYTES;
        bytes ? json_.String(absl::Base64Escape(text)) : json_.String(text);
        return;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE:
        WriteFraction(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
        return;
      case FieldDescriptor::CPPTYPE_FLOAT:
        WriteFraction(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
        return;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        WriteObject(index < 0 ? reflection.GetMessage(message, &field)
                              : reflection.GetRepeatedMessage(message, &field, index));
        return;
    }
  }

  void WriteLong(int64_t value) { protobuf_ ? json_.String(absl::StrCat(value)) : json_.Integer(value); }
  void WriteLong(uint64_t value) { protobuf_ ? json_.String(absl::StrCat(value)) : json_.Unsigned(value); }

  void WriteEnum(const FieldDescriptor& field, int number) {
    const google::protobuf::EnumValueDescriptor* value = field.enum_type()->FindValueByNumber(number);
    value != nullptr ? json_.String(value->name()) : json_.Integer(number);
  }

  template <typename Value>
  void WriteFraction(Value value) {
    if (std::isfinite(value) || !protobuf_) {
      json_.Number(value);
    } else {
      json_.String(std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    }
  }

  const bool protobuf_;
  JsonOut& json_;
};

}  // namespace

void WriteMessage(const Message& message, JsonDialect dialect, JsonOut& json) {
  Writer(dialect, json).WriteObject(message);
}

}  // namespace edgewise::server
