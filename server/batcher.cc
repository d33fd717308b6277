#include "server/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"

namespace edgewise::server {

absl::Status Batcher::Add(TaskPtr& task, Time now) {
  if (absl::Status alive = Alive(*task, now); !alive.ok()) return alive;
  const size_t requests = size();
  std::string full;
  if (requests >= limits_.max_requests && requests > 0) {
    full = absl::StrCat("the queue is full: ", requests, " requests wait; the limit is ", limits_.max_requests);
  } else if (requests > 0 && cost_ + task->cost > limits_.max_tokens) {
    full = absl::StrCat("the queue is full: ", cost_, " positions and edges wait and this request has ", task->cost,
                        "; the limit is ", limits_.max_tokens);
  }
  if (!full.empty()) {
    absl::Status status = absl::ResourceExhaustedError(full);
    SetRetryDelay(status, RetryDelaySeconds());
    return status;
  }
  cost_ += task->cost;
  const uint32_t level = std::clamp(task->priority, 1u, kPriorityLevels);
  waiting_[level - 1].push_back(std::move(task));
  return absl::OkStatus();
}

std::vector<DeadTask> Batcher::TakeDead(Time now) {
  std::vector<DeadTask> dead;
  for (std::deque<TaskPtr>& waiting : waiting_) {
    std::deque<TaskPtr> live;
    bool changed = false;
    for (TaskPtr& task : waiting) {
      absl::Status alive = Alive(*task, now);
      if (alive.ok()) continue;
      cost_ -= task->cost;
      dead.push_back({std::move(task), std::move(alive)});
      changed = true;
    }
    if (!changed) continue;
    for (TaskPtr& task : waiting) {
      if (task) live.push_back(std::move(task));
    }
    waiting = std::move(live);
  }
  return dead;
}

std::vector<TaskPtr> Batcher::TakeAll() {
  std::vector<TaskPtr> all;
  for (std::deque<TaskPtr>& waiting : waiting_) {
    for (TaskPtr& task : waiting) all.push_back(std::move(task));
    waiting.clear();
  }
  cost_ = 0;
  return all;
}

std::vector<TaskPtr> Batcher::NextBatch() {
  std::vector<TaskPtr> batch;
  for (std::deque<TaskPtr>& waiting : waiting_) {
    if (waiting.empty()) continue;
    cost_ -= waiting.front()->cost;
    batch.push_back(std::move(waiting.front()));
    waiting.pop_front();
    break;
  }
  return batch;
}

void Batcher::RecordBatch(size_t requests, double seconds) {
  if (requests == 0) return;
  seconds_per_request_ += 0.1 * (seconds / static_cast<double>(requests) - seconds_per_request_);
}

double Batcher::RetryDelaySeconds() const {
  return std::clamp(static_cast<double>(size()) * seconds_per_request_, 0.05, 5.0);
}

size_t Batcher::size() const {
  size_t requests = 0;
  for (const std::deque<TaskPtr>& waiting : waiting_) requests += waiting.size();
  return requests;
}

}  // namespace edgewise::server
