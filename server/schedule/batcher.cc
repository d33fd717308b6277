#include "server/schedule/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"

namespace edgewise::server {

size_t Batcher::Line::size() const {
  size_t tasks = 0;
  for (const std::deque<TaskPtr>& level : levels) tasks += level.size();
  return tasks;
}

size_t Batcher::Line::first() const {
  size_t level = 0;
  while (level < levels.size() && levels[level].empty()) ++level;
  return level;
}

TaskPtr Batcher::Line::Pop() {
  std::deque<TaskPtr>& level = levels[first()];
  TaskPtr task = std::move(level.front());
  level.pop_front();
  cost -= task->cost;
  return task;
}

void Batcher::Line::TakeEnded(Time now, std::vector<EndedTask>& ended) {
  for (std::deque<TaskPtr>& level : levels) {
    for (TaskPtr& task : level) {
      absl::Status reason = CancelledOrExpired(*task, now);
      if (reason.ok()) continue;
      cost -= task->cost;
      ended.push_back({std::move(task), std::move(reason)});
    }
    std::erase(level, nullptr);
  }
}

absl::Status Batcher::Add(TaskPtr& task, Time now) {
  if (absl::Status reason = CancelledOrExpired(*task, now); !reason.ok()) return reason;
  Line& line = task->generation ? generations_ : requests_;
  const char* what = task->generation ? " generations wait" : " requests wait";
  const size_t waiting = line.size();
  std::string full;
  if (waiting >= limits_.max_requests && waiting > 0) {
    full = absl::StrCat("the queue is full: ", waiting, what, "; the limit is ", limits_.max_requests);
  } else if (waiting > 0 && line.cost + task->cost > limits_.max_tokens) {
    full = absl::StrCat("the queue is full: ", line.cost, " positions and edges wait and this request has ", task->cost,
                        "; the limit is ", limits_.max_tokens);
  }
  if (!full.empty()) {
    absl::Status status = absl::ResourceExhaustedError(full);
    SetRetryDelay(status, RetryDelaySeconds(line));
    return WithRejection(std::move(status), Rejection::kQueueFull);
  }
  line.cost += task->cost;
  const uint32_t level = std::clamp(task->priority, 1u, kPriorityLevels);
  line.levels[level - 1].push_back(std::move(task));
  return absl::OkStatus();
}

std::vector<EndedTask> Batcher::TakeEnded(Time now) {
  std::vector<EndedTask> ended;
  requests_.TakeEnded(now, ended);
  generations_.TakeEnded(now, ended);
  return ended;
}

std::vector<TaskPtr> Batcher::TakeAll() {
  std::vector<TaskPtr> all;
  for (Line* line : {&requests_, &generations_}) {
    while (line->first() < kPriorityLevels) all.push_back(line->Pop());
  }
  return all;
}

std::vector<TaskPtr> Batcher::NextBatch() {
  std::vector<TaskPtr> batch;
  if (HasBatch()) batch.push_back(requests_.Pop());
  return batch;
}

bool Batcher::HasGeneration(const GenerationRoom& room) const {
  const size_t first = generations_.first();
  return first < kPriorityLevels && room.generations > 0 &&
         generations_.levels[first].front()->generation->cache_bytes <= room.cache_bytes;
}

TaskPtr Batcher::NextGeneration(const GenerationRoom& room) {
  return HasGeneration(room) ? generations_.Pop() : nullptr;
}

void Batcher::RecordBatch(size_t requests, double seconds) {
  if (requests == 0) return;
  seconds_per_request_ += 0.1 * (seconds / static_cast<double>(requests) - seconds_per_request_);
}

double Batcher::RetryDelaySeconds() const { return RetryDelaySeconds(requests_); }

double Batcher::RetryDelaySeconds(const Line& line) const {
  return std::clamp(static_cast<double>(line.size()) * seconds_per_request_, 0.05, 5.0);
}

}  // namespace edgewise::server
