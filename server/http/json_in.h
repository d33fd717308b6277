// Reads a JSON text into a message of Protobuf, field by field as the text goes by; nothing else is built of it.
#ifndef EDGEWISE_SERVER_HTTP_JSON_IN_H_
#define EDGEWISE_SERVER_HTTP_JSON_IN_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "server/base/memory.h"
#include "server/base/options.h"

namespace edgewise::server {

inline constexpr int kMaxJsonDepth = 64;

enum class JsonDialect {
  kPlain,     // names as in the .proto; numbers are numbers
  kProtobuf,  // Protobuf's mapping: camel case too, numbers and bytes in strings, names of enums
};

// The object in `text` becomes `message`, which is empty. A field of the message edgewise.http.Json takes any value,
// one of edgewise.http.Content a text, token ids, or lists (bodies.proto). A null leaves its field out. `memory` grows
// by what the reader and the message take, before they take it. `limits`: as errors of another type name them.
// INVALID_ARGUMENT, with the field where there is one: no JSON of UTF-8, a field that the message lacks, has twice or
// takes otherwise, more than kMaxJsonDepth levels.
// RESOURCE_EXHAUSTED: more than kMaxParts objects and strings, or no memory. Any thread.
absl::Status ReadJson(std::string_view text, JsonDialect dialect, google::protobuf::Message& message,
                      MemoryHold& memory, const RequestLimits& limits = {});

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_JSON_IN_H_
