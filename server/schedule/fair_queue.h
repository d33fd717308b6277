// The requests of one kind that wait, by level and principal, and the seconds that each principal has used. A plain
// data structure: no thread, no lock, no clock.
//
// The principals of a level share it by virtual time. Each has an account of the seconds it has used. The level has a
// virtual clock, which advances by (seconds used / active principals). An account opens at the clock's time, so idle
// time saves nothing up. It stays open while its principal has a request that waits or runs.
#ifndef EDGEWISE_SERVER_SCHEDULE_FAIR_QUEUE_H_
#define EDGEWISE_SERVER_SCHEDULE_FAIR_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/request/request.h"

namespace edgewise::server {

template <typename T>
using PerLevel = std::array<T, kPriorityLevels>;

// A request that leaves the line without having been computed, and why.
struct EndedRequest {
  RequestPtr request;
  absl::Status reason;
};

// One principal on one level.
struct Account {
  std::deque<RequestPtr> waiting;  // in order of arrival
  double seconds = 0.0;            // predicted for the least that those that wait take (degrade.h)
  double longest = 0.0;            // predicted, of them, or longer
  double served = 0.0;             // seconds, on the level's clock
};

class FairQueue {
 public:
  using Accounts = std::map<std::string, Account>;  // by the principal's name
  // The waiting requests of one principal, on all levels.
  struct Usage {
    size_t requests = 0;
    uint64_t cost = 0;  // as Work::cost
  };

  size_t size() const { return requests_; }
  uint64_t cost() const { return cost_; }
  const Accounts& accounts(size_t level) const { return levels_[level].accounts; }
  double clock(size_t level) const { return levels_[level].clock; }
  Usage UsageOf(const std::string& principal) const;

  // The account of a principal, which is opened where there is none.
  Account& Open(size_t level, const std::string& principal);
  // Closes the accounts without a request that waits, but for those that `keep` names.
  void CloseIdle(size_t level, const std::function<bool(const std::string& principal)>& keep);
  // A principal of the level has had so much of the device; the part `own` of that was its own.
  void Charge(size_t level, const std::string& principal, double seconds, double own = 1.0);

  void Push(RequestPtr request);
  RequestPtr Take(size_t level, const std::string& principal, size_t index);
  std::vector<RequestPtr> TakeAll();
  // Takes the requests for which `reason` gives an error.
  void TakeIf(const std::function<absl::Status(const Request&)>& reason, std::vector<EndedRequest>& ended);
  // Takes the newest requests of the principal that has most, so that there is room for a request of `principal` and
  // `cost` within these limits, and the other keeps at least as much as `principal` gets. Takes nothing where that is
  // not possible.
  std::vector<RequestPtr> MakeRoom(const std::string& principal, uint64_t cost, size_t max_requests, uint64_t max_cost);

 private:
  struct Level {
    Accounts accounts;
    double clock = 0.0;
  };
  void Leave(Account& account, const Request& request);

  PerLevel<Level> levels_;
  std::map<std::string, Usage> usage_;  // of principals with a request that waits
  size_t requests_ = 0;
  uint64_t cost_ = 0;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_FAIR_QUEUE_H_
