// Decides which tasks wait, which are computed next and together, and which are refused. A plain state machine: no
// thread, no lock, no clock; callers pass the time. TaskQueue (queue.h) puts a lock around it.
//
// The policy of this version: one request is one batch; first come, first served within a priority. Predict requests
// and generations wait in a line each, so that neither kind fills the line of the other.
#ifndef EDGEWISE_SERVER_SCHEDULE_BATCHER_H_
#define EDGEWISE_SERVER_SCHEDULE_BATCHER_H_

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/options.h"
#include "server/task.h"

namespace edgewise::server {

// A task that was cancelled or expired before it was computed.
struct EndedTask {
  TaskPtr task;
  absl::Status reason;
};

// The room for further generations beside those that run.
struct GenerationRoom {
  size_t generations = 0;
  uint64_t cache_bytes = 0;
};

class Batcher {
 public:
  explicit Batcher(QueueLimits limits) : limits_(limits) {}

  // Takes the task iff OK. RESOURCE_EXHAUSTED with RetryInfo: its line is full. DEADLINE_EXCEEDED or CANCELLED: it has
  // ended already. An empty line is never full. Ended tasks count until TakeEnded.
  absl::Status Add(TaskPtr& task, Time now);

  // Removes the tasks that are cancelled or expired.
  std::vector<EndedTask> TakeEnded(Time now);
  // Removes all tasks.
  std::vector<TaskPtr> TakeAll();

  // Removes and returns the requests to compute next, all of one model; empty if none waits. Call TakeEnded first.
  std::vector<TaskPtr> NextBatch();
  // Removes and returns the generation to start next if it fits, otherwise null. No later one overtakes it.
  TaskPtr NextGeneration(const GenerationRoom& room);
  bool HasBatch() const { return requests_.first() < kPriorityLevels; }
  bool HasGeneration(const GenerationRoom& room) const;

  // A batch of `requests` took this long. RetryDelaySeconds averages these times.
  void RecordBatch(size_t requests, double seconds);
  // The delay before a refused client should retry: the time of the work in the queue, between 50 ms and 5 s.
  double RetryDelaySeconds() const;

  size_t size() const { return requests_.size() + generations_.size(); }
  uint64_t cost() const { return requests_.cost + generations_.cost; }

 private:
  // Tasks of one kind.
  struct Line {
    std::array<std::deque<TaskPtr>, kPriorityLevels> levels;  // by priority - 1
    uint64_t cost = 0;

    size_t size() const;
    size_t first() const;  // the level of the task that goes first; kPriorityLevels: the line is empty
    TaskPtr Pop();         // the line must not be empty
    void TakeEnded(Time now, std::vector<EndedTask>& ended);
  };
  double RetryDelaySeconds(const Line& line) const;

  QueueLimits limits_;
  Line requests_;
  Line generations_;
  double seconds_per_request_ = 0.01;  // moving average
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_BATCHER_H_
