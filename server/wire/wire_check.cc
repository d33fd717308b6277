#include "server/wire/wire_check.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr uint64_t kPartBytes = 256;  // the largest message of the services, and its place in a list
// An arena keeps the arrays that a list outgrows, and a list grows to twice its size.
constexpr uint64_t kGrowth = 4;
constexpr int kMaxDepth = 100;  // of groups, as in Protobuf

class Walk {
 public:
  Walk(CodedInputStream& input, WireCounts& counts) : input_(input), counts_(counts) {}

  // The fields up to the end of the message; of a group, whose tag is `group`, up to its end.
  absl::Status Fields(const Descriptor* type, int depth, uint32_t group = 0) {
    if (depth > kMaxDepth) return Broken("nests too deep");
    while (const uint32_t tag = input_.ReadTag()) {
      if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_END_GROUP) {
        const bool ends =
            group != 0 && WireFormatLite::GetTagFieldNumber(tag) == WireFormatLite::GetTagFieldNumber(group);
        return ends ? absl::OkStatus() : Broken("ends a group that it did not begin");
      }
      RETURN_IF_ERROR(Field(type, tag, depth));
    }
    return group == 0 && input_.ConsumedEntireMessage() ? absl::OkStatus() : Broken("ends early or has a broken tag");
  }

 private:
  static WireFormatLite::WireType ElementWire(const FieldDescriptor& field) {
    return WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
  }

  // An element of a list of varints, once parsed. Null `field`: one that is not known, which counts as a part.
  static uint64_t VarintBytes(const FieldDescriptor* field) {
    const bool wide = field && (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                                field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64);
    return wide ? 8 : 4;
  }

  static bool Fits(const FieldDescriptor& field, WireFormatLite::WireType wire) {
    return wire == ElementWire(field) || (wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED && field.is_packable());
  }

  absl::Status Field(const Descriptor* type, uint32_t tag, int depth) {
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    if (number == 0) return Broken("has a field of number 0");
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    const FieldDescriptor* field = type ? type->FindFieldByNumber(number) : nullptr;
    if (field && !Fits(*field, wire)) field = nullptr;  // kept as an unknown field
    if (!field) RETURN_IF_ERROR(CountPart());
    switch (wire) {
      case WireFormatLite::WIRETYPE_VARINT: {
        uint64_t value;
        CountNumbers(VarintBytes(field));
        return input_.ReadVarint64(&value) ? absl::OkStatus() : Broken("has a broken number");
      }
      case WireFormatLite::WIRETYPE_FIXED64:
        CountNumbers(8);
        return Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        CountNumbers(4);
        return Skip(4);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return Delimited(field, depth);
      case WireFormatLite::WIRETYPE_START_GROUP:
        return Fields(nullptr, depth + 1, tag);  // the service has none: unknown
      default:
        return Broken("has a broken tag");
    }
  }

  absl::Status Delimited(const FieldDescriptor* field, int depth) {
    int length;
    if (!input_.ReadVarintSizeAsInt(&length)) return Broken("has a broken length");
    if (field && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      RETURN_IF_ERROR(CountPart());
      const auto limit = input_.PushLimit(length);
      if (input_.BytesUntilLimit() != length) return Broken("has a part that ends behind it");
      RETURN_IF_ERROR(Fields(field->message_type(), depth + 1));
      input_.PopLimit(limit);
      return absl::OkStatus();
    }
    if (field && field->is_packable()) return Packed(*field, length);
    if (field) RETURN_IF_ERROR(CountPart());
    counts_.parsed_bytes += static_cast<uint64_t>(length);
    return Skip(length);
  }

  absl::Status Packed(const FieldDescriptor& field, int length) {
    if (ElementWire(field) != WireFormatLite::WIRETYPE_VARINT) {
      CountNumbers(static_cast<uint64_t>(length));
      return Skip(length);
    }
    while (length > 0) {
      const void* data;
      int size;
      if (!input_.GetDirectBufferPointer(&data, &size)) return Broken("has a list that ends behind it");
      size = std::min(size, length);
      const auto* begin = static_cast<const uint8_t*>(data);
      const auto last_bytes = std::count_if(begin, begin + size, [](uint8_t byte) { return byte < 0x80; });
      CountNumbers(VarintBytes(&field) * static_cast<uint64_t>(last_bytes));
      RETURN_IF_ERROR(Skip(size));
      length -= size;
    }
    return absl::OkStatus();
  }

  absl::Status CountPart() {
    counts_.parsed_bytes += kPartBytes;
    if (++counts_.parts <= kMaxParts) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the message has more than ", kMaxParts,
                                                     " parts, the most that the server takes: send fewer inputs, "
                                                     "strings or heads of graphs"));
  }

  void CountNumbers(uint64_t bytes) { counts_.parsed_bytes += kGrowth * bytes; }

  absl::Status Skip(int bytes) {
    return input_.Skip(bytes) ? absl::OkStatus() : Broken("has a field that ends behind it");
  }

  absl::Status Broken(const char* how) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the message ", how, ", at byte ", input_.CurrentPosition(), "; it cannot be parsed"));
  }

  CodedInputStream& input_;
  WireCounts& counts_;
};

}  // namespace

absl::Status CheckWire(google::protobuf::io::ZeroCopyInputStream& bytes, const Descriptor& type, WireCounts& counts) {
  CodedInputStream input(&bytes);
  counts = {.parts = 0, .parsed_bytes = kPartBytes};
  return Walk(input, counts).Fields(&type, 0);
}

}  // namespace edgewise::server
