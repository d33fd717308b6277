// What Predict and Generate have in common: where a request counts, whether it may come in, how its end is counted and
// logged.
#ifndef EDGEWISE_SERVER_CALLS_CALLS_H_
#define EDGEWISE_SERVER_CALLS_CALLS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/models/repository.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

// One request on its way.
struct Call {
  Time arrival;
  std::string request_id;
  std::string model;  // as the request says
  ModelMetrics* metrics = nullptr;
  std::shared_ptr<const LoadedModel> loaded;  // once admitted
  uint64_t seed = 0;
  uint32_t priority = 0;
  uint64_t tokens = 0;   // that wait in the queue, or did
  double seconds = 0.0;  // from its arrival to its end, once that is counted
};

// All methods may be called from any thread; none blocks.
class Calls {
 public:
  // All must outlive this and every request in flight.
  Calls(Repository& repository, TaskQueue& queue, Metrics& metrics)
      : repository_(repository), queue_(queue), metrics_(metrics) {}

  // Where a request counts: the version it asks for, the latest when that is no version; `_other` for what the
  // repository lacks.
  ModelMetrics& MetricsOf(const std::string& model, int64_t version) const;

  // Begin and End enclose every request.
  void Begin(Call& call, const std::string& model, int64_t version);
  // Checks what every request has, and finds the model. INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, UNAVAILABLE,
  // DEADLINE_EXCEEDED.
  absl::Status Admit(Call& call, const std::string& model, int64_t version, const std::string& request_id,
                     Time deadline);
  // Queues an admitted task. From OK on the call belongs to the task's `done`, which must call Left() first.
  absl::Status Push(Call& call, TaskPtr task);
  void Left(const Call& call, const TaskResult& result);
  // A request was admitted and is valid.
  void CountValid(const Call& call, BudgetKind budget) const;
  // Counts why a request got no answer; nothing for OK. `invalid_as`: what INVALID_ARGUMENT, or RESOURCE_EXHAUSTED
  // without a retry, counts as.
  void CountRefusal(const Call& call, const absl::Status& status, Rejection invalid_as) const;
  // Logs it, once it is counted.
  void LogRefusal(const Call& call, const absl::Status& status);
  void End() { in_flight_.fetch_sub(1); }

  // From now on every request is UNAVAILABLE.
  void Drain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  // Requests that have begun and not ended.
  int64_t in_flight() const { return in_flight_.load(); }
  Time now() const { return queue_.now(); }
  // A client took tokens, or went: its generation can go on.
  void Wake() { queue_.Wake(); }

 private:
  std::optional<Rejection> RejectionOf(const absl::Status& status, Rejection invalid_as) const;

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
