// The one bounded queue between the RPC threads and the engine: a Scheduler behind a lock.
#ifndef EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
#define EDGEWISE_SERVER_SCHEDULE_QUEUE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/schedule/scheduler.h"

namespace edgewise::server {

// The engine's next work: a job for its thread; or a generation to start, which may be missing, and a turn.
struct Assignment {
  std::function<void()> job;
  RequestPtr generation;
  Turn turn;
  std::vector<RequestPtr> batch;  // of Turn::kStart
  RequestPtr background;          // to start, where there is nothing else
  bool closed = false;            // the queue is closed and empty

  bool none() const { return !job && !generation && !background && turn.kind == Turn::kNothing; }
  bool end() const { return none() && closed; }
};

// The engine's work besides passes that somebody waits for.
struct UnderWay {
  PerLevel<bool> generations = {};  // one of this level can take a step
  GenerationRoom room;
  uint64_t cache_bytes = 0;  // that keys and values of generations hold
  bool background = false;   // a pass that nobody waits for
};

// How long Next() waits while nothing waits for it.
enum class Wait {
  kForWork,  // until there is work, or the queue is closed
  kAWhile,   // 20 ms at most; Wake() ends the wait too
  kNot       // not at all
};

// All methods may be called from any thread, except that one thread at a time calls Next(). Nothing but Next() blocks;
// Request::done is never called under the lock.
//
// A thread that pushes a short request, alone, while the engine has nothing to do takes the engine's turns for it: a
// loan. The request is then computed where it came, and no other thread has to wake for it.
class RequestQueue {
 public:
  explicit RequestQueue(QueueLimits limits, std::function<Time()> clock = Clock::now)
      : clock_(std::move(clock)), scheduler_(limits) {}

  // Predicted seconds of a request that is worth a loan: for so long its thread can wait.
  static constexpr double kLoanSeconds = 0.001;

  // Takes the request iff OK; with a loan (Ticket::alone) it may have ended by the return. Errors: Scheduler::Add;
  // UNAVAILABLE after Close.
  absl::Status Push(RequestPtr& request);
  // The engine lends its turns from now on: Push calls `take_turns`, which ends with GiveBack. Before the first Push.
  void Lend(std::function<void()> take_turns) { take_turns_ = std::move(take_turns); }
  // Ends a loan. The engine goes on with what is `left`.
  void GiveBack(bool left);
  // Takes a request that nobody waits for (Ticket::background) iff OK. It starts when there is nothing else to do, and
  // counts for no other request. RESOURCE_EXHAUSTED: as many wait as may; UNAVAILABLE after Close.
  absl::Status PushBackground(RequestPtr& request);
  // Whether Push would refuse a Predict of at least these predicted seconds: Scheduler::Check.
  absl::Status Check(const Ticket& ticket, double seconds);
  // Runs `work` on the engine's thread, before any request, waits for it and returns its status. UNAVAILABLE after
  // Close.
  absl::Status RunOnEngine(const std::function<absl::Status()>& work);

  // The next work; a generation only if it fits into the room. Ends the requests that cannot be answered any more.
  Assignment Next(Wait wait = Wait::kForWork, const UnderWay& under_way = {});
  // Events of the scheduler. Call Stepped before the answers of a pass are sent.
  uint64_t Started(RunningPass pass);
  void Stepped(uint64_t pass, const Progress& progress, double seconds);
  void Ended(uint64_t pass);
  void Generated(uint32_t level, double seconds);
  // Ends a wait of kind kAWhile: a client took tokens or cancelled.
  void Wake();

  // Push refuses from now on; what waits is still served, but for the background. Then the engine ends.
  void Close();
  // Push refuses from now on, and waiting requests end with UNAVAILABLE. cancelled() tells the engine to do the same
  // with running ones.
  void CancelAll();
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // UnderWay::cache_bytes of the last call of Next.
  uint64_t cache_bytes() const { return cache_bytes_.load(std::memory_order_relaxed); }
  Time now() const { return clock_(); }
  size_t size() const;
  // Whether there is work besides what is under way.
  bool HasMore() const;

 private:
  // Takes the background requests for which `reason` gives an error.
  void TakeBackground(const std::function<absl::Status(const Request&)>& reason, std::vector<EndedRequest>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<Time()> clock_;
  std::function<void()> take_turns_;  // of a loan; null: there are none
  mutable absl::Mutex mutex_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<RequestPtr> background_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // the engine waits for work and has none
  bool lent_ ABSL_GUARDED_BY(mutex_) = false;  // and keeps waiting meanwhile
  bool left_ ABSL_GUARDED_BY(mutex_) = false;  // by a loan
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> cache_bytes_ = 0;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
