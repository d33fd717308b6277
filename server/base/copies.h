// Values that a call gives once for all of its inputs, and that each input then has a copy of.
#ifndef EDGEWISE_SERVER_BASE_COPIES_H_
#define EDGEWISE_SERVER_BASE_COPIES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/base/memory.h"

namespace edgewise::server {

// Counts inputs of `bytes` in `hold`, before a value that they share is copied to each, and `more` beside them.
// RESOURCE_EXHAUSTED: as a message over gRPC, of at most `message_limit` bytes, they would be too large, or there is no
// memory for them.
absl::Status HoldCopies(uint64_t bytes, uint64_t more, uint64_t message_limit, MemoryHold& hold);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_COPIES_H_
