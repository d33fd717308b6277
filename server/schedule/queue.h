// The one bounded queue between the RPC threads and the engine: a Batcher behind a lock.
#ifndef EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
#define EDGEWISE_SERVER_SCHEDULE_QUEUE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/schedule/batcher.h"

namespace edgewise::server {

// The engine's next work: a job for its thread, or a generation to start and a batch, either of which may be missing.
struct Work {
  std::function<void()> job;
  TaskPtr generation;
  std::vector<TaskPtr> batch;
  bool closed = false;  // the queue is closed and empty

  bool none() const { return !job && !generation && batch.empty(); }
  bool end() const { return none() && closed; }
};

// How long Next() waits while there is no work.
enum class Wait {
  kForWork,  // until there is work, or the queue is closed
  kAWhile,   // 20 ms at most; Wake() ends the wait too
  kNot       // not at all
};

// All methods may be called from any thread, except that one thread calls Next(). Nothing but Next() blocks; `done` of
// a task is never called under the lock.
class TaskQueue {
 public:
  explicit TaskQueue(QueueLimits limits, std::function<Time()> clock = Clock::now);

  // Takes the task in any case; `done` is called iff OK is returned. Errors: Batcher::Add; UNAVAILABLE after Close.
  absl::Status Push(TaskPtr task);
  // Runs on the engine's thread, before any task. Dropped after Close.
  void Post(std::function<void()> job);

  // The next work; a generation only if it fits into `room`. Answers the tasks that ended while they waited.
  Work Next(Wait wait = Wait::kForWork, const GenerationRoom& room = {});
  // Answers the waiting tasks that are cancelled or expired; the engine calls this between layers.
  void AnswerEnded();
  // A generation to start between the layers of a batch; null: no waiting one fits.
  TaskPtr NextGeneration(const GenerationRoom& room);
  // Ends a wait of kind kAWhile: a client took tokens or cancelled.
  void Wake();
  void RecordBatch(size_t requests, double seconds);

  // Push refuses from now on; waiting tasks are still served.
  void Close();
  // Closes, and answers waiting tasks with UNAVAILABLE. cancelled() tells the engine to do the same with running ones.
  void CancelAll();
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  Time now() const { return clock_(); }
  size_t size() const;

 private:
  const std::function<Time()> clock_;
  mutable absl::Mutex mutex_;
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancelled_ = false;
};

// Answers a task that was not computed.
void AnswerUncomputed(TaskPtr task, absl::Status reason, Time now);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
