// The one bounded queue between the RPC threads and the engine: a Scheduler behind a lock.
#ifndef EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
#define EDGEWISE_SERVER_SCHEDULE_QUEUE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/schedule/scheduler.h"

namespace edgewise::server {

// The engine's next work: a job for its thread; or a generation to start, which may be missing, and a turn.
struct Work {
  std::function<void()> job;
  RequestPtr generation;
  Turn turn;
  std::vector<RequestPtr> batch;  // of Turn::kStart
  bool closed = false;            // the queue is closed and empty

  bool none() const { return !job && !generation && turn.kind == Turn::kNothing; }
  bool end() const { return none() && closed; }
};

// What the engine has under way.
struct Running {
  std::vector<RunningPass> passes;  // the latest last
  PerLevel<bool> generations = {};  // one of this level can take a step
  GenerationRoom room;
};

// How long Next() waits while nothing waits for it.
enum class Wait {
  kForWork,  // until there is work, or the queue is closed
  kAWhile,   // 20 ms at most; Wake() ends the wait too
  kNot       // not at all
};

// All methods may be called from any thread, except that one thread calls Next(). Nothing but Next() blocks;
// Request::done is never called under the lock.
class RequestQueue {
 public:
  explicit RequestQueue(QueueLimits limits, std::function<Time()> clock = Clock::now)
      : clock_(std::move(clock)), scheduler_(limits) {}

  // Takes the request iff OK. Errors: Scheduler::Add; UNAVAILABLE after Close.
  absl::Status Push(RequestPtr& request);
  // Whether Push would refuse a request of which not all is known yet: Scheduler::Check.
  absl::Status Check(const Request& request);
  // Runs `work` on the engine's thread, before any request, waits for it and returns its status. UNAVAILABLE after
  // Close.
  absl::Status RunOnEngine(const std::function<absl::Status()>& work);

  // The next work; a generation only if it fits into the room. Ends the requests that cannot be answered any more.
  Work Next(Wait wait = Wait::kForWork, const Running& running = {});
  // The turn took so long.
  void Charge(const Turn& turn, double seconds);
  // Ends a wait of kind kAWhile: a client took tokens or cancelled.
  void Wake();

  // Push refuses from now on; what waits is still served. Then the engine ends.
  void Close();
  // Push refuses from now on, and waiting requests end with UNAVAILABLE. cancelled() tells the engine to do the same
  // with running ones.
  void CancelAll();
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Memory for keys and values that the generations which run have left; all of it before the first call of Next.
  uint64_t cache_left() const { return cache_left_.load(std::memory_order_relaxed); }
  Time now() const { return clock_(); }
  size_t size() const;

 private:
  const std::function<Time()> clock_;
  mutable absl::Mutex mutex_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> cache_left_ = ~uint64_t{0};
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
