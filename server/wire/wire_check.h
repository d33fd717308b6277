// Looks at the bytes of a Protobuf message before they are parsed: a part of two bytes may take a hundred times its
// size once it is an object.
#ifndef EDGEWISE_SERVER_WIRE_WIRE_CHECK_H_
#define EDGEWISE_SERVER_WIRE_WIRE_CHECK_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstdint>

#include "absl/status/status.h"

namespace edgewise::server {

// Messages inside the message, strings and unknown fields count as parts. 1,024 inputs with graphs of 12 layers and 10
// heads are as many.
inline constexpr uint64_t kMaxParts = 1 << 17;

struct WireCounts {
  uint64_t parts = 0;
  uint64_t parsed_bytes = 0;  // that the parsed message takes on an arena, at most
};

// Walks the bytes of a message of `type` to their end and counts. Reads each byte at most once, and allocates nothing
// that grows with the message. INVALID_ARGUMENT: they are no such message; RESOURCE_EXHAUSTED: more than kMaxParts.
// `counts` then has what was counted until there. Any thread.
absl::Status CheckWire(google::protobuf::io::ZeroCopyInputStream& bytes, const google::protobuf::Descriptor& type,
                       WireCounts& counts);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_WIRE_CHECK_H_
