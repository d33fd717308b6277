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

// What the engine does next: a job on its own thread, a generation to start, a batch, or nothing.
struct Work {
  std::function<void()> job;
  TaskPtr generation;
  std::vector<TaskPtr> batch;
  bool closed = false;  // nothing waits, and nothing will

  bool none() const { return !job && !generation && batch.empty(); }
  bool end() const { return none() && closed; }
};

// What Next() does when nothing waits.
enum class Wait {
  kForWork,  // waits for work, or for the end
  kAWhile,   // waits 20 ms at most, also for Wake()
  kNot       // returns at once
};

// All methods may be called from any thread, except that one thread calls Next(). Nothing but Next() blocks; `done` of
// a task is never called under the lock.
class TaskQueue {
 public:
  explicit TaskQueue(QueueLimits limits, std::function<Time()> clock = Clock::now);

  // Owns the task either way; calls its `done` iff OK is returned. Errors: Batcher::Add; UNAVAILABLE after Close.
  absl::Status Push(TaskPtr task);
  // Runs on the engine's thread, before any task. Dropped after Close.
  void Post(std::function<void()> job);

  // The next work; a generation only if it fits into `room`. Tasks that died waiting are answered here.
  Work Next(Wait wait = Wait::kForWork, const GenerationRoom& room = {});
  // Answers the tasks that are cancelled or late; the engine calls it between layers.
  void AnswerEnded();
  // A generation to start between the layers of a batch; null: none waits that fits.
  TaskPtr NextGeneration(const GenerationRoom& room);
  // Ends a wait of kind kAWhile: a client took tokens, or went.
  void Wake();
  void RecordBatch(size_t requests, double seconds);

  // Push refuses from now on; what waits is still served.
  void Close();
  // Close, and answer what waits with UNAVAILABLE. aborted() tells the engine to drop what runs.
  void Abort();
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }

  Time now() const { return clock_(); }
  size_t size() const;

 private:
  const std::function<Time()> clock_;
  mutable absl::Mutex mutex_;
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> aborted_ = false;
};

// Answers a task that was not computed.
void AnswerUncomputed(TaskPtr task, absl::Status reason, Time now);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_QUEUE_H_
