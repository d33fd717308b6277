// The parts of the server that every front uses, gRPC and HTTP. Knows no library of either.
#ifndef EDGEWISE_SERVER_WIRE_CALL_PARTS_H_
#define EDGEWISE_SERVER_WIRE_CALL_PARTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "server/base/memory.h"
#include "server/base/options.h"
#include "server/guard/auth.h"
#include "server/guard/awaited.h"
#include "server/handler/handler.h"
#include "server/models/repository.h"
#include "server/observe/call_log.h"
#include "server/observe/metrics.h"
#include "server/wire/lone_client.h"

namespace edgewise::server {

// That a call takes before its message comes: its objects here and in its library, its part of a connection.
inline constexpr uint64_t kSilentCallBytes = 32 << 10;

// All must outlive it and every call.
struct CallParts {
  const ServerOptions& options;
  RequestHandler& handler;
  const Repository& repository;
  Metrics& metrics;
  MemoryLedger& memory;
  AwaitedCalls& awaited;
  const std::atomic<uint64_t>& largest_message;  // in bytes; it changes with the models
  const Gate& gate;
  CallLog& calls;
  LoneClient& lone_client;

  // A Predict has come on `connection` that is not prepared apart. Whether its thread may compute it (Ticket::alone).
  bool IsAlone(size_t connection) {
    return lone_client.Observe(connection, options.clock()) && handler.in_flight() == 0 && awaited.of_requests() == 0;
  }
  uint64_t message_limit() const { return largest_message.load(std::memory_order_relaxed); }
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_CALL_PARTS_H_
