// How large a message has to be allowed to be.
#ifndef EDGEWISE_SERVER_HANDLER_MESSAGE_LIMIT_H_
#define EDGEWISE_SERVER_HANDLER_MESSAGE_LIMIT_H_

#include <cstdint>
#include <vector>

#include "server/base/options.h"
#include "server/models/repository.h"

namespace edgewise::server {

// The memory that calls may hold: three quarters of options.max_memory, or else of half of what this machine has beside
// the weights. The last quarter is for what gRPC holds itself.
uint64_t MemoryForCalls(const ServerOptions& options, const std::vector<ModelStatus>& models);

// The largest message to take: options.max_message_bytes, else 4 MiB, or more where one input of a loaded model needs
// it, up to a third of `memory`.
uint64_t MessageLimit(const ServerOptions& options, uint64_t memory, const std::vector<ModelStatus>& models);

// The largest message that a server with so much memory ever takes.
uint64_t LargestMessageLimit(const ServerOptions& options, uint64_t memory);

// The bytes of a message with the longest input of the model, without text, but with its graph where `limits` take
// graphs: one that the server returned comes back with its weights.
uint64_t LongestMessage(const ModelConfig& config, const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_MESSAGE_LIMIT_H_
