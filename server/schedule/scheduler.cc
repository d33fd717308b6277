#include "server/schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"
#include "text/status_macros.h"

namespace edgewise::server {

size_t Scheduler::Line::size() const {
  size_t requests = 0;
  for (const std::deque<RequestPtr>& level : levels) requests += level.size();
  return requests;
}

size_t Scheduler::Line::first() const {
  size_t level = 0;
  while (level < levels.size() && levels[level].empty()) ++level;
  return level;
}

RequestPtr Scheduler::Line::Pop() {
  std::deque<RequestPtr>& level = levels[first()];
  RequestPtr request = std::move(level.front());
  level.pop_front();
  cost -= request->cost;
  return request;
}

void Scheduler::Line::TakeEnded(Time now, std::vector<EndedRequest>& ended) {
  for (std::deque<RequestPtr>& level : levels) {
    for (RequestPtr& request : level) {
      absl::Status reason = CancelledOrExpired(*request, now);
      if (reason.ok()) continue;
      cost -= request->cost;
      ended.push_back({std::move(request), std::move(reason)});
    }
    std::erase(level, nullptr);
  }
}

absl::Status Scheduler::Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended) {
  RETURN_IF_ERROR(CancelledOrExpired(*request, now));
  Line& line = request->generation ? generations_ : predicts_;
  if (IsFull(line, *request)) ended = TakeEnded(now);  // they make room
  if (IsFull(line, *request)) return Full(line, *request);
  line.cost += request->cost;
  request->queued = now;
  line.levels[request->priority - 1].push_back(std::move(request));
  return absl::OkStatus();
}

bool Scheduler::IsFull(const Line& line, const Request& request) const {
  const size_t waiting = line.size();
  return waiting > 0 && (waiting >= limits_.max_requests || line.cost + request.cost > limits_.max_tokens);
}

absl::Status Scheduler::Full(const Line& line, const Request& request) const {
  const std::string why = line.size() >= limits_.max_requests
                              ? absl::StrCat(line.size(), request.generation ? " generations" : " requests",
                                             " wait; the limit is ", limits_.max_requests)
                              : absl::StrCat(line.cost, " positions and edges wait and this request has ", request.cost,
                                             "; the limit is ", limits_.max_tokens);
  absl::Status status = absl::ResourceExhaustedError("the queue is full: " + why);
  SetRetryDelay(status, RetryDelaySeconds(line));
  return WithRejection(std::move(status), Rejection::kQueueFull);
}

std::vector<EndedRequest> Scheduler::TakeEnded(Time now) {
  std::vector<EndedRequest> ended;
  predicts_.TakeEnded(now, ended);
  generations_.TakeEnded(now, ended);
  return ended;
}

std::vector<RequestPtr> Scheduler::TakeAll() {
  std::vector<RequestPtr> all;
  for (Line* line : {&predicts_, &generations_}) {
    while (line->first() < kPriorityLevels) all.push_back(line->Pop());
  }
  return all;
}

bool Scheduler::HasGeneration(const GenerationRoom& room) const {
  const size_t first = generations_.first();
  return first < kPriorityLevels && room.generations > 0 &&
         generations_.levels[first].front()->generation->cache_bytes <= room.cache_bytes;
}

double Scheduler::RetryDelaySeconds(const Line& line) const {
  return std::clamp(static_cast<double>(line.size()) * seconds_per_request_, 0.05, 5.0);
}

}  // namespace edgewise::server
