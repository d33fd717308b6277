// Decides which requests wait, what the device does next, and which requests are refused. A plain state machine: no
// thread, no lock, no clock; callers pass the time. RequestQueue (queue.h) puts a lock around it.
//
// Between levels: weighted sharing of the device (kLevelWeights), over any time in which they all have work. Within a
// level: weighted fair queueing by finish time. Next is the work with the smallest (seconds its principal has used +
// its own predicted seconds; fair_queue.h). So each principal gets its share, and a short request goes before a long
// one of a principal that has used as much. Within a principal: first come, first served; but a request that takes at
// most a quarter of the rest of its principal's passes goes before them. A request that goes before a running pass
// starts beside it, and a pass that was set aside gets a step every kPatience. Requests and generations of one level
// get equal times. Work is predicted seconds (cost_model.h).
//
// A principal may hold half of a line while others wait in it. Where the line is full, the newest requests of the
// principal with the most waiting make room for one that has less.
//
// Requests whose clients agreed to a degraded answer count with the least that they may get where others wait for them.
// When one starts, it keeps the largest share of the rest that makes nobody behind it late; each of its steps decides
// the same for its other samples.
//
// Predict requests and generations wait in a line each, so that neither kind fills the line of the other.
#ifndef EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
#define EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_

#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/options.h"
#include "server/request/request.h"
#include "server/schedule/fair_queue.h"

namespace edgewise::server {

// The room for further generations beside those that run.
struct GenerationRoom {
  size_t generations = 0;
  uint64_t cache_bytes = 0;
};

// How far a pass is.
struct Progress {
  double remaining = 0.0;   // predicted seconds; 0: its answers are about to be sent
  double spare = 0.0;       // of these: what its requests may give up (degrade.h)
  Time stepped;             // the end of its last step
  Time ends = Time::max();  // the last deadline of its requests: no step goes on beyond it
};

// A pass that runs (passes.h).
struct RunningPass {
  uint32_t level = 0;        // priority - 1
  std::string principal;     // of its first request
  double own = 1.0;          // that request's part of the work; the others have been charged for theirs
  std::stop_token stopping;  // of a pass of one request: no step goes on once its client has gone
  Progress progress;
  uint64_t number = 0;  // Scheduler::Started gives it
};

// The engine's next action.
struct Turn {
  enum Kind { kNothing, kStart, kStep, kGeneration };
  Kind kind = kNothing;
  uint32_t level = 0;
  uint64_t pass = 0;  // kStep, and kStart once its batch is taken: the number of the pass
  double kept = 1.0;  // kStep: the fraction of what the pass may give up that makes nobody late
};

class Scheduler {
 public:
  static constexpr PerLevel<double> kLevelWeights = {8.0, 4.0, 1.0};
  static constexpr std::chrono::milliseconds kPatience{100};
  // A batch of several requests takes at most so long: larger ones gain nothing from each other.
  static constexpr double kBatchSeconds = 0.005;
  // Passes of one level; beyond it none starts beside others.
  static constexpr size_t kMostPasses = 8;

  explicit Scheduler(QueueLimits limits) : limits_(limits) {}

  // Takes the request iff OK. DEADLINE_EXCEEDED or CANCELLED: it has ended already, or would be late even alone.
  // RESOURCE_EXHAUSTED with RetryInfo: its line is full, or what goes before it would make it late (without a deadline:
  // would make it wait longer than limits.max_delay; a generation: not even start before its deadline). A server
  // without other work tries every request. Before it refuses, requests that have ended make room, and those of a
  // principal that holds more: they go to `ended`.
  absl::Status Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended);
  // Whether the work that waits and runs would make Add refuse a Predict of at least these predicted seconds.
  absl::Status Check(const Ticket& ticket, double seconds, Time now, std::vector<EndedRequest>& ended);

  // Removes the requests that are cancelled, expired, or cannot be computed before their deadline any more; where
  // others of their level wait, also those that are unlikely to be.
  std::vector<EndedRequest> TakeEnded(Time now);
  // Removes all requests.
  std::vector<RequestPtr> TakeAll();

  // The next action. `generations` tells on which levels a generation can take a step. Call TakeEnded first.
  Turn Next(const PerLevel<bool>& generations, Time now);
  // Removes and returns the requests that Turn::kStart starts: of one model, in order. Their pass runs from now on.
  std::vector<RequestPtr> TakeBatch(Turn& turn, Time now);

  // The events of the passes that run. A pass of TakeBatch has started; Started is for another one, and returns its
  // number.
  uint64_t Started(RunningPass pass);
  // The pass has had `seconds` of the device, or its requests have changed. Where nothing remains it delays
  // nobody.
  void Stepped(uint64_t pass, const Progress& progress, double seconds);
  void Ended(uint64_t pass);
  // A step of generations took so long.
  void Generated(uint32_t level, double seconds);
  // Closes the accounts of principals that have nothing here. Also done when a pass ends.
  void CloseIdle();

  // Removes and returns the generation to start next if it fits, otherwise null. No later one overtakes it.
  RequestPtr NextGeneration(const GenerationRoom& room);

  // Whether a Predict waits, or a generation that fits.
  bool HasWork(const GenerationRoom& room) const {
    return predicts_.size() > 0 || (generations_.size() > 0 && FirstGeneration(room));
  }
  size_t size() const { return predicts_.size() + generations_.size(); }
  uint64_t cost() const { return predicts_.cost() + generations_.cost(); }

 private:
  // A principal's next action, and its finish time on the clock of its level.
  struct Candidate {
    Turn turn;
    std::string principal;
    size_t index = 0;  // of what starts, in the account
    double end = 0.0;
    Time since;  // of what starts: when it came

    bool Before(const Candidate& other) const { return end != other.end ? end < other.end : since < other.since; }
  };

  // A request that wants to wait.
  struct Entrant {
    const Ticket& ticket;
    double seconds = 0.0, least = 0.0;  // predicted, of all and of the least that it may get
    uint64_t cost = 0;                  // as Work::cost
    bool generates = false;
  };

  // Marks passes that nobody waits for any more as about to end.
  void EndLeftPasses(Time now);
  RunningPass& PassOf(uint64_t number);
  // Whether nothing waits and no pass runs: then nothing is in the way of a request.
  bool idle() const { return size() == 0 && running_.empty(); }
  // Where the scheduler is not idle. `before`: SecondsBefore(entrant), when it returns OK.
  absl::Status Check(const Entrant& entrant, Time now, double& before, std::vector<EndedRequest>& ended);
  absl::Status CheckShare(const Entrant& entrant, double before, Time now) const;
  absl::Status CheckTime(const Entrant& entrant, double before, Time now) const;
  absl::Status MakeRoom(const Entrant& entrant, double before, std::vector<EndedRequest>& ended);
  FairQueue& QueueOf(bool generates) { return generates ? generations_ : predicts_; }
  const FairQueue& QueueOf(bool generates) const { return generates ? generations_ : predicts_; }
  double SecondsBefore(const Entrant& entrant) const;
  // The fraction that all requests of the level can keep of what they may give up, so that none of those that wait is
  // late. They are taken to go in order of arrival.
  double KeptFraction(uint32_t level, Time now) const;
  Candidate CandidateOf(uint32_t level, const std::string& principal, const Account& account) const;
  Turn TurnOf(uint32_t level, bool generation, Time now);
  // The generation to start next, if it fits.
  std::optional<Candidate> FirstGeneration(const GenerationRoom& room) const;

  const QueueLimits limits_;
  FairQueue predicts_;
  FairQueue generations_;
  std::vector<RunningPass> running_;  // the latest last
  uint64_t started_ = 0;
  PerLevel<double> served_ = {};           // seconds over weight; of idle levels not less than of the others
  PerLevel<bool> active_ = {};             // at the last turn
  PerLevel<double> generation_lead_ = {};  // seconds that generations had beyond those of requests
  PerLevel<Candidate> candidate_ = {};     // of the last turn
  Time looked_;                            // for requests that have ended
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_SCHEDULER_H_
