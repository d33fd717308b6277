// The part that Predict and Generate share: admission, queueing, counting and logging of requests.
#ifndef EDGEWISE_SERVER_CALLS_CALLS_H_
#define EDGEWISE_SERVER_CALLS_CALLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/models/repository.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/schedule/queue.h"
#include "server/validate/common.h"

namespace edgewise::server {

// One request from its arrival to its end.
struct Call {
  explicit Call(Rpc rpc) : rpc(rpc) {}

  const Rpc rpc;
  Time arrival;
  Time deadline = Time::max();
  std::stop_token stopping;  // requested when the client cancels
  std::string request_id;
  std::string model;  // as the request names it
  ModelMetrics* metrics = nullptr;
  std::shared_ptr<const LoadedModel> loaded;  // once admitted
  uint64_t seed = 0;
  uint32_t priority = 0;
  GaugeHold in_flight;   // while it is queued or computed
  double seconds = 0.0;  // from its arrival to its end, once counted
};

// All methods may be called from any thread; none blocks.
class Calls {
 public:
  // All must outlive this and every request in flight.
  Calls(Repository& repository, TaskQueue& queue, Metrics& metrics)
      : repository_(repository), queue_(queue), metrics_(metrics) {}

  // The first call for every request: counts it as in flight, checks its names and finds the model. Its metrics are
  // those of the version asked for, of the latest if there is no such version, `_other` for an unknown model.
  // INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, UNAVAILABLE, DEADLINE_EXCEEDED.
  absl::Status Admit(Call& call, const std::string& model, int64_t version, const std::string& request_id);
  // Counts a valid request and queues its task. From OK on the call belongs to `done`, which must call CountTask().
  absl::Status Queue(Call& call, ParsedRequest parsed, std::function<void(TaskResult)> done);
  // Counts the time and the end of a task. Inside the metrics event that counts the end of the call.
  void CountTask(Call& call, TaskResult& result);
  // Counts the end of a request, and why it got no answer.
  void CountEnd(Call& call, const absl::Status& status);
  // Counts a Predict request that was refused before Admit.
  void CountUnadmitted(const std::string& model, int64_t version, const absl::Status& status);
  // Logs why a counted request got no answer; nothing for OK.
  void LogRefusal(const Call& call, const absl::Status& status);
  // The last call for every request, after its status is sent.
  void End() { in_flight_.fetch_sub(1); }

  // From now on every new request is UNAVAILABLE.
  void Drain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  // Requests between Admit and End.
  int64_t in_flight() const { return in_flight_.load(); }
  Time now() const { return queue_.now(); }
  // Tells the engine that a client took tokens or cancelled, so that its generation can go on.
  void Wake() { queue_.Wake(); }

 private:
  Repository& repository_;
  TaskQueue& queue_;
  Metrics& metrics_;
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> in_flight_ = 0;
  absl::Mutex limiter_mutex_;
  LogLimiter limiter_ ABSL_GUARDED_BY(limiter_mutex_);
};

// Whole microseconds, rounded down. Clocks tick in nanoseconds: half of one makes up for the rounding of the product.
inline uint64_t Microseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e6 + 0.0005); }

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_CALLS_CALLS_H_
