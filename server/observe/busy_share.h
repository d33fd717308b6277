// The share of the last seconds in which the device worked. Any thread; no clock of its own.
#ifndef EDGEWISE_SERVER_OBSERVE_BUSY_SHARE_H_
#define EDGEWISE_SERVER_OBSERVE_BUSY_SHARE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/request/request.h"

namespace edgewise::server {

class BusyShare {
 public:
  static constexpr int64_t kSeconds = 10;  // that it looks back, the one that runs included

  // The device worked for `seconds` until `end`.
  void Add(Time end, double seconds) {
    const double at = Seconds(end.time_since_epoch());
    const absl::MutexLock lock(&mutex_);
    // A step is much shorter than the time that is looked back on: the rest counts for the second before.
    const double latest = std::min(seconds, at - std::floor(at));
    BusyIn(static_cast<int64_t>(at)) += latest;
    BusyIn(static_cast<int64_t>(at) - 1) += seconds - latest;
  }

  // 0 to 1.
  double At(Time now) const {
    const double at = Seconds(now.time_since_epoch());
    const auto second = static_cast<int64_t>(at);
    double busy = 0.0;
    const absl::MutexLock lock(&mutex_);
    for (const Second& one : seconds_) busy += one.number > second - kSeconds && one.number <= second ? one.busy : 0.0;
    return std::min(1.0, busy / (at - static_cast<double>(second - kSeconds + 1)));
  }

 private:
  struct Second {
    int64_t number = -kSeconds;
    double busy = 0.0;
  };

  // A step of an earlier second than the one that has its place counts for the later one.
  double& BusyIn(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Second& second = seconds_[static_cast<size_t>((number % kSeconds + kSeconds) % kSeconds)];
    if (number > second.number) second = {number, 0.0};
    return second.busy;
  }

  mutable absl::Mutex mutex_;
  std::array<Second, kSeconds> seconds_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_BUSY_SHARE_H_
