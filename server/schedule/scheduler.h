// Decides which requests wait, which is computed next, and which are refused. A plain state machine: no thread, no
// lock, no clock; callers pass the time. RequestQueue (queue.h) puts a lock around it.
//
// The policy of this version: one request at a time; first come, first served within a priority. Predict requests and
// generations wait in a line each, so that neither kind fills the line of the other.
#ifndef EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
#define EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/options.h"
#include "server/request.h"

namespace edgewise::server {

// A request that was cancelled or expired before it was computed.
struct EndedRequest {
  RequestPtr request;
  absl::Status reason;
};

// The room for further generations beside those that run.
struct GenerationRoom {
  size_t generations = 0;
  uint64_t cache_bytes = 0;
};

class Scheduler {
 public:
  explicit Scheduler(QueueLimits limits) : limits_(limits) {}

  // Takes the request iff OK. RESOURCE_EXHAUSTED with RetryInfo: its line is full. DEADLINE_EXCEEDED or CANCELLED: it
  // has ended already. An empty line is never full. Where the line is full, those that have ended leave it, to `ended`.
  absl::Status Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended);

  // Removes the requests that are cancelled or expired.
  std::vector<EndedRequest> TakeEnded(Time now);
  // Removes all requests.
  std::vector<RequestPtr> TakeAll();

  // Removes and returns the Predict request to compute next; null if none waits. Call TakeEnded first.
  RequestPtr NextPredict() { return HasPredict() ? predicts_.Pop() : nullptr; }
  // Removes and returns the generation to start next if it fits, otherwise null. No later one overtakes it.
  RequestPtr NextGeneration(const GenerationRoom& room) { return HasGeneration(room) ? generations_.Pop() : nullptr; }
  bool HasPredict() const { return predicts_.first() < kPriorityLevels; }
  bool HasGeneration(const GenerationRoom& room) const;

  // A Predict request took this long. RetryDelaySeconds averages these times.
  void RecordPredict(double seconds) { seconds_per_request_ += 0.1 * (seconds - seconds_per_request_); }
  // The delay before a refused client should retry: the time of the work in the queue, between 50 ms and 5 s.
  double RetryDelaySeconds() const { return RetryDelaySeconds(predicts_); }

  size_t size() const { return predicts_.size() + generations_.size(); }
  uint64_t cost() const { return predicts_.cost + generations_.cost; }

 private:
  // Requests of one kind.
  struct Line {
    std::array<std::deque<RequestPtr>, kPriorityLevels> levels;  // by priority - 1
    uint64_t cost = 0;

    size_t size() const;
    size_t first() const;  // the level of the request that goes first; kPriorityLevels: the line is empty
    RequestPtr Pop();      // the line must not be empty
    void TakeEnded(Time now, std::vector<EndedRequest>& ended);
  };
  bool IsFull(const Line& line, const Request& request) const;  // has no room for it
  absl::Status Full(const Line& line, const Request& request) const;
  double RetryDelaySeconds(const Line& line) const;

  QueueLimits limits_;
  Line predicts_;
  Line generations_;
  double seconds_per_request_ = 0.01;  // moving average
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
