// Messages between the bytes of gRPC and the objects of Protobuf.
#ifndef EDGEWISE_SERVER_WIRE_MESSAGE_H_
#define EDGEWISE_SERVER_WIRE_MESSAGE_H_

#include <google/protobuf/arena.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "server/base/memory.h"

namespace edgewise::server {

// RESOURCE_EXHAUSTED: the message has more bytes than `limit`.
absl::Status CheckLength(const grpc::ByteBuffer& bytes, uint64_t limit);

// Parses the bytes into `message`, which lies on an arena, and frees them. `memory` holds the bytes before, with or
// without success, and the parsed message afterwards. RESOURCE_EXHAUSTED: too many parts, or too little memory is left;
// INVALID_ARGUMENT: they are no such message.
absl::Status Parse(grpc::ByteBuffer& bytes, google::protobuf::Message& message, MemoryHold& memory);

grpc::ByteBuffer Serialize(const google::protobuf::Message& message);

// A message on an arena of its own. The first bytes of the arena are here, enough for a short request.
template <typename Message>
class ParsedMessage {
 public:
  ParsedMessage() = default;
  ParsedMessage(const ParsedMessage&) = delete;
  ParsedMessage& operator=(const ParsedMessage&) = delete;

  Message& operator*() { return *message_; }

 private:
  alignas(8) char start_[2048];
  google::protobuf::Arena arena_{start_, sizeof start_};
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_MESSAGE_H_
