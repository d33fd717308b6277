#include "server/calls/calls.h"

#include <algorithm>
#include <utility>

#include "server/status_details.h"
#include "server/validate/validate.h"

namespace edgewise::server {

ModelMetrics& Calls::MetricsOf(const std::string& model, int64_t version) const {
  if (!IsModelName(model)) return metrics_.other();
  return *repository_.Resolve(model, std::max<int64_t>(0, version)).metrics;
}

void Calls::Begin(Call& call, const std::string& model, int64_t version) {
  in_flight_.fetch_add(1);
  call.arrival = queue_.now();
  call.metrics = &MetricsOf(model, version);
}

absl::Status Calls::Admit(Call& call, const std::string& model, int64_t version, const std::string& request_id,
                          Time deadline) {
  for (absl::Status status : {CheckModelName(model), CheckVersion(version), CheckRequestId(request_id)}) {
    if (!status.ok()) return status;
  }
  call.request_id = request_id;
  call.model = model;
  Resolved resolved = repository_.Resolve(model, version);
  call.metrics = resolved.metrics;
  if (draining()) return ShuttingDown();
  if (!resolved.status.ok()) return resolved.status;
  call.loaded = std::move(resolved.loaded);
  if (call.arrival >= deadline) return absl::DeadlineExceededError("the deadline has passed");
  return absl::OkStatus();
}

absl::Status Calls::Push(Call& call, TaskPtr task) {
  LoadedMetrics& metrics = *call.loaded->metrics;
  const auto accept = [&](int requests) {
    const MetricsEvent event = metrics.Event();
    metrics.AddInFlight(requests);
    metrics.AddQueued(requests, requests * static_cast<int64_t>(call.tokens));
  };
  accept(1);
  absl::Status pushed = queue_.Push(std::move(task));
  if (!pushed.ok()) accept(-1);
  return pushed;
}

void Calls::Left(const Call& call, const TaskResult& result) {
  LoadedMetrics& metrics = *call.loaded->metrics;
  const MetricsEvent event = metrics.Event();
  metrics.ObserveQueue(call.priority, result.queue_seconds);
  if (result.batch_inputs == 0) metrics.AddQueued(-1, -static_cast<int64_t>(call.tokens));
  metrics.AddInFlight(-1);
  metrics.AddCancelledCompute(result.cancelled_seconds);
}

void Calls::CountValid(const Call& call, BudgetKind budget) const {
  LoadedMetrics& metrics = *call.loaded->metrics;
  const MetricsEvent event = metrics.Event();
  metrics.CountBudget(budget);
  metrics.ObserveStage(Stage::kInput, Seconds(now() - call.arrival));
}

std::optional<Rejection> Calls::RejectionOf(const absl::Status& status, Rejection invalid_as) const {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return invalid_as;
    case absl::StatusCode::kNotFound:
      return Rejection::kInvalid;
    case absl::StatusCode::kFailedPrecondition:
      return Rejection::kNotReady;
    case absl::StatusCode::kUnavailable:
      return draining() ? Rejection::kDraining : Rejection::kNotReady;
    case absl::StatusCode::kDeadlineExceeded:
      return Rejection::kDeadline;
    case absl::StatusCode::kCancelled:
      return Rejection::kCancelled;
    case absl::StatusCode::kResourceExhausted:
      if (RetryDelay(status) >= 0.0) return Rejection::kQueueFull;
      return invalid_as == Rejection::kOutOfMemory ? Rejection::kOutOfMemory : Rejection::kInvalid;
    default:
      return std::nullopt;
  }
}

void Calls::CountRefusal(const Call& call, const absl::Status& status, Rejection invalid_as) const {
  if (status.ok()) return;
  const std::optional<Rejection> rejection = RejectionOf(status, invalid_as);
  if (rejection) call.metrics->CountRejection(*rejection);
}

void Calls::LogRefusal(const Call& call, const absl::Status& status) {
  if (status.ok()) return;
  const std::string code = absl::StatusCodeToString(status.code());
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&limiter_mutex_);
    if (!limiter_.Allow(code, now(), suppressed)) return;
  }
  Log(LogLevel::kWarning, "request",
      {{"request_id", call.request_id},
       {"model", call.model},
       {"code", code},
       {"error", std::string(status.message())},
       {"total_us", Microseconds(call.seconds)},
       {"suppressed", suppressed}});
}

}  // namespace edgewise::server
