#include "server/wire/message.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/wire/wire_check.h"

namespace edgewise::server {

absl::Status CheckLength(const grpc::ByteBuffer& bytes, uint64_t limit) {
  const uint64_t size = bytes.Length();
  if (size <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the message has ", size, " bytes; the server takes at most ", limit, " (ModelInfo of GetModel)"));
}

absl::Status Parse(grpc::ByteBuffer& bytes, google::protobuf::Message& message, MemoryHold& memory) {
  const uint64_t size = bytes.Length();
  WireCounts counts;
  {
    grpc::ProtoBufferReader reader(&bytes);
    RETURN_IF_ERROR(CheckWire(reader, *message.GetDescriptor(), counts));
  }
  RETURN_IF_ERROR(memory.Resize(size + counts.parsed_bytes));
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (!message.ParseFromZeroCopyStream(&reader)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the message is no ", message.GetDescriptor()->full_name(), ": it cannot be parsed"));
    }
  }
  bytes.Clear();
  memory.Shrink(counts.parsed_bytes);
  return absl::OkStatus();
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer;
  grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes, &own_buffer);
  return bytes;
}

}  // namespace edgewise::server
