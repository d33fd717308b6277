#include "server/calls/calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_details.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr size_t kMaxRequestId = 128;

absl::Status CheckRequestId(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (id.size() <= kMaxRequestId && printable) return absl::OkStatus();
  return FieldError("request_id", absl::StrCat("is ", Quoted(id), "; allowed are at most ", kMaxRequestId,
                                               " printable ASCII characters"));
}

}  // namespace

absl::Status Calls::Admit(Call& call, const std::string& model, int64_t version, const std::string& request_id) {
  in_flight_.fetch_add(1);
  call.arrival = now();
  Resolved resolved = repository_.Resolve(model, version);
  call.metrics = resolved.metrics;
  if (absl::IsInvalidArgument(resolved.status)) return resolved.status;
  RETURN_IF_ERROR(CheckRequestId(request_id));
  call.request_id = request_id;
  call.model = model;
  if (draining()) return ShuttingDown();
  if (!resolved.status.ok()) return resolved.status;
  call.loaded = std::move(resolved.loaded);
  if (call.arrival >= call.deadline) return absl::DeadlineExceededError("the deadline has passed");
  return absl::OkStatus();
}

absl::Status Calls::Queue(Call& call, ParsedRequest parsed, std::function<void(TaskResult)> done) {
  Task& task = *parsed.task;
  call.seed = parsed.seed;
  call.priority = task.priority;
  task.model = call.loaded;
  task.deadline = call.deadline;
  task.stopping = call.stopping;
  task.done = std::move(done);
  {
    LoadedMetrics& metrics = *call.loaded->metrics;
    const MetricsEvent event = metrics.Event();
    metrics.CountBudget(parsed.budget);
    metrics.ObserveStage(Stage::kInput, Seconds(now() - call.arrival));
    call.in_flight = metrics.HoldInFlight();
    task.gauge = metrics.HoldQueued(task.tokens);
  }
  absl::Status pushed = queue_.Push(std::move(parsed.task));
  if (!pushed.ok()) call.in_flight.reset();
  return pushed;
}

void Calls::CountTask(Call& call, TaskResult& result) {
  LoadedMetrics& metrics = *call.loaded->metrics;
  metrics.ObserveQueue(call.priority, result.queue_seconds);
  metrics.AddCancelledCompute(result.cancelled_seconds);
  result.gauge.reset();
  call.in_flight.reset();
}

void Calls::CountEnd(Call& call, const absl::Status& status) {
  const MetricsEvent event = call.metrics->Event();
  call.seconds = Seconds(now() - call.arrival);
  call.metrics->CountRequest(call.rpc, status.code(), call.seconds);
  if (const std::optional<Rejection> reason = RejectionOf(status)) call.metrics->CountRejection(*reason);
}

void Calls::CountUnadmitted(const std::string& model, int64_t version, const absl::Status& status) {
  Call call(Rpc::kPredict);
  call.arrival = now();
  call.metrics = repository_.Resolve(model, version).metrics;
  CountEnd(call, status);
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
