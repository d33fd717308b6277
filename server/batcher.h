// Which tasks wait, which are computed next and together, and which are refused. A plain state machine: no thread, no
// lock, no clock; the time is passed in. TaskQueue (queue.h) puts a lock around it.
//
// The policy of this version: one request is one batch; first come, first served within a priority.
#ifndef EDGEWISE_SERVER_BATCHER_H_
#define EDGEWISE_SERVER_BATCHER_H_

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/options.h"
#include "server/task.h"

namespace edgewise::server {

using TaskPtr = std::unique_ptr<Task>;

// A task that ended without being computed, and why.
struct DeadTask {
  TaskPtr task;
  absl::Status reason;
};

class Batcher {
 public:
  explicit Batcher(QueueLimits limits) : limits_(limits) {}

  // Takes the task iff OK. RESOURCE_EXHAUSTED with RetryInfo: full. DEADLINE_EXCEEDED or CANCELLED: it came dead. An
  // empty queue is never full. Cancelled and late tasks still count until TakeDead.
  absl::Status Add(TaskPtr& task, Time now);

  // Removes the tasks that are cancelled or late.
  std::vector<DeadTask> TakeDead(Time now);
  // Removes all tasks.
  std::vector<TaskPtr> TakeAll();

  // Removes and returns the tasks to compute next, all of one model; empty when nothing waits. Call TakeDead before.
  std::vector<TaskPtr> NextBatch();

  // A batch of `requests` took this long: the service time that retry advice is made of.
  void RecordBatch(size_t requests, double seconds);
  // When a refused client should come back: the work in the queue, between 50 ms and 5 s.
  double RetryDelaySeconds() const;

  size_t size() const;
  uint64_t cost() const { return cost_; }

 private:
  QueueLimits limits_;
  std::array<std::deque<TaskPtr>, kPriorityLevels> waiting_;  // by priority - 1
  uint64_t cost_ = 0;
  double seconds_per_request_ = 0.01;  // moving average
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BATCHER_H_
