// The parts of the server that every RPC uses, and the RPCs that are open.
#ifndef EDGEWISE_SERVER_RPC_CONTEXT_H_
#define EDGEWISE_SERVER_RPC_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/calls/handler.h"
#include "server/memory.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/options.h"
#include "server/rpc/auth.h"
#include "server/rpc/awaited.h"
#include "server/schedule/engine.h"

namespace edgewise::server {

class StreamReactor;

// The RPCs whose status is not sent yet. A drain waits for them. Any thread.
class OpenRpcs {
 public:
  // Counts a Predict or Generate call until the result is destroyed, which must be before this.
  std::shared_ptr<void> HoldCall() {
    calls_.fetch_add(1);
    return {nullptr, [this](std::nullptr_t) { calls_.fetch_sub(1); }};
  }
  int64_t calls() const { return calls_.load(); }

  void AddStream(StreamReactor* stream);
  void RemoveStream(StreamReactor* stream);
  // Ends each stream once its requests are answered. After RequestHandler::Drain().
  void DrainStreams();
  int64_t streams() const;

 private:
  std::atomic<int64_t> calls_ = 0;
  mutable absl::Mutex mutex_;
  std::set<StreamReactor*> streams_ ABSL_GUARDED_BY(mutex_);
};

// All parts must outlive the context and every RPC.
struct RpcContext {
  const ServerOptions& options;
  RequestHandler& handler;
  const Repository& repository;
  Metrics& metrics;
  MemoryLedger& memory;
  AwaitedCalls& awaited;
  const std::atomic<uint64_t>& largest_message;  // in bytes; it changes with the models
  const Gate& gate;
  OpenRpcs open = {};
  Engine* lender = nullptr;  // takes short requests on the threads of gRPC; null: the device takes one thread only

  uint64_t message_limit() const { return largest_message.load(std::memory_order_relaxed); }

  // A call that begins during a drain does not count: the drain does not wait for the calls that it refuses.
  std::shared_ptr<void> HoldCall() { return handler.draining() ? nullptr : open.HoldCall(); }
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_CONTEXT_H_
