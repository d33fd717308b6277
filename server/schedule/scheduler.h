// Decides which requests wait, what the device does next, and which requests are refused. A plain state machine: no
// thread, no lock, no clock; callers pass the time. RequestQueue (queue.h) puts a lock around it.
//
// Between levels: levels with work share the device by weight (kLevelWeights), over any time in which they all have
// work. Within a level: first come, first served; but a request that takes at most a quarter of what is left of the
// passes that run starts beside them and goes first. A pass that was set aside so gets a step every kPatience. Requests
// and generations of one level get equal times. Work is predicted seconds (cost_model.h).
//
// Requests whose clients have agreed to fewer samples count with one sample where others wait for them. When one
// starts, and at each of its steps, it keeps the share of its other samples that makes nobody late who waits behind it.
//
// Predict requests and generations wait in a line each, so that neither kind fills the line of the other.
#ifndef EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
#define EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/options.h"
#include "server/request.h"

namespace edgewise::server {

// A request that was cancelled or expired before it was computed, or that cannot be computed in time.
struct EndedRequest {
  RequestPtr request;
  absl::Status reason;
};

// The room for further generations beside those that run.
struct GenerationRoom {
  size_t generations = 0;
  uint64_t cache_bytes = 0;
};

// A pass that runs (passes.h).
struct RunningPass {
  uint32_t level = 0;      // priority - 1
  double remaining = 0.0;  // predicted seconds
  Time stepped;            // the end of its last step
  double spare = 0.0;      // of the remaining seconds: what its requests may give up (degrade.h)
};

// What the engine does next.
struct Turn {
  enum Kind { kNothing, kStart, kStep, kGeneration };
  Kind kind = kNothing;
  uint32_t level = 0;
  size_t pass = 0;     // kStep: index among the running passes
  double share = 1.0;  // kStep: of what the pass may give up, what it can keep without making others late
};

template <typename T>
using PerLevel = std::array<T, kPriorityLevels>;

class Scheduler {
 public:
  static constexpr PerLevel<double> kLevelWeights = {8.0, 4.0, 1.0};
  static constexpr std::chrono::milliseconds kPatience{100};
  // A batch of several requests takes at most so long: larger ones gain nothing from each other.
  static constexpr double kBatchSeconds = 0.005;

  explicit Scheduler(QueueLimits limits) : limits_(limits) {}

  // Takes the request iff OK. DEADLINE_EXCEEDED or CANCELLED: it has ended already, or would be late even alone.
  // RESOURCE_EXHAUSTED with RetryInfo: its line is full, or what goes before it would make it late (without a deadline:
  // would make it wait longer than limits.max_delay). A server without other work tries every request.
  // Before it refuses, requests that have ended make room: they go to `ended`.
  absl::Status Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended);

  // Removes the requests that are cancelled, expired, or cannot be computed before their deadline any more.
  std::vector<EndedRequest> TakeEnded(Time now);
  // Removes all requests.
  std::vector<RequestPtr> TakeAll();

  // The passes that run, the latest last.
  void SetRunning(std::span<const RunningPass> running) { running_.assign(running.begin(), running.end()); }
  // What to do next, where `generations` tells on which levels a generation can take a step. Call TakeEnded first.
  Turn Next(const PerLevel<bool>& generations, Time now);
  // A turn took so long.
  void Charge(const Turn& turn, double seconds);
  // Removes and returns the requests that Turn::kStart starts: of one model, in order.
  std::vector<RequestPtr> TakeBatch(uint32_t level, Time now);
  // Removes and returns the generation to start next if it fits, otherwise null. No later one overtakes it.
  RequestPtr NextGeneration(const GenerationRoom& room);

  bool HasPredict() const { return predicts_.size() > 0; }
  bool HasGeneration(const GenerationRoom& room) const;
  size_t size() const { return predicts_.size() + generations_.size(); }
  uint64_t cost() const { return predicts_.cost + generations_.cost; }

 private:
  // Requests of one kind.
  struct Line {
    PerLevel<std::deque<RequestPtr>> levels;
    uint64_t cost = 0;

    size_t size() const;
    RequestPtr Take(size_t level, size_t index);
    void TakeEnded(Time now, std::vector<EndedRequest>& ended);
  };
  absl::Status CheckRoom(const Line& line, const Request& request, Time now) const;
  double SecondsBefore(const Request& request) const;
  // The share that all requests of the level have to keep of what they may give up, so that none of those that wait is
  // late.
  double Share(uint32_t level, Time now) const;
  // The index in its line of the request that would start beside the passes of its level; -1: none.
  int64_t Candidate(uint32_t level) const;
  Turn TurnOf(uint32_t level, bool generation, Time now);
  const Request* FirstGeneration() const;  // null: none waits

  const QueueLimits limits_;
  Line predicts_;
  Line generations_;
  std::vector<RunningPass> running_;
  PerLevel<double> served_ = {};           // seconds over weight; of idle levels not less than of the others
  PerLevel<bool> active_ = {};             // at the last turn
  PerLevel<double> generation_lead_ = {};  // seconds that generations had beyond those of requests
  PerLevel<size_t> candidate_ = {};        // of the last turn
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
