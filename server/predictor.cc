#include "server/predictor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/respond.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

uint64_t Microseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e6); }

std::optional<Rejection> RejectionOf(const absl::Status& status, Rejection invalid_as, bool draining) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return invalid_as;
    case absl::StatusCode::kNotFound:
      return Rejection::kInvalid;
    case absl::StatusCode::kFailedPrecondition:
      return Rejection::kNotReady;
    case absl::StatusCode::kUnavailable:
      return draining ? Rejection::kDraining : Rejection::kNotReady;
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

}  // namespace

void Predictor::Predict(const v1::PredictRequest& request, Time deadline,
                        std::shared_ptr<const std::atomic<bool>> cancelled, v1::PredictResponse* response,
                        PredictDone done) {
  in_flight_.fetch_add(1);
  auto call = std::make_shared<Call>();
  call->arrival = queue_.now();
  call->response = response;
  call->done = std::move(done);
  call->metrics = &MetricsOf(request);
  Start(request, deadline, std::move(cancelled), std::move(call));
}

ModelMetrics& Predictor::MetricsOf(const v1::PredictRequest& request) const {
  if (!IsModelName(request.model())) return metrics_.other();
  return *repository_.Resolve(request.model(), std::max<int64_t>(0, request.version())).metrics;
}

void Predictor::Start(const v1::PredictRequest& request, Time deadline,
                      std::shared_ptr<const std::atomic<bool>> cancelled, std::shared_ptr<Call> call) {
  for (const absl::Status& status :
       {CheckModelName(request.model()), CheckVersion(request.version()), CheckRequestId(request.request_id())}) {
    if (!status.ok()) return End(*call, status);
  }
  call->request_id = request.request_id();
  call->model = request.model();
  Resolved resolved = repository_.Resolve(request.model(), request.version());
  call->metrics = resolved.metrics;
  if (draining()) return End(*call, ShuttingDown());
  if (!resolved.status.ok()) return End(*call, resolved.status);
  call->loaded = std::move(resolved.loaded);
  if (call->arrival >= deadline) return End(*call, absl::DeadlineExceededError("the deadline has passed"));

  bool budget_refused = false;
  absl::StatusOr<ParsedRequest> parsed = ParseRequest(request, *call->loaded->model, options_.limits, &budget_refused);
  if (!parsed.ok()) {
    return End(*call, parsed.status(), budget_refused ? Rejection::kBudget : Rejection::kInvalid);
  }
  LoadedMetrics& metrics = *call->loaded->metrics;
  metrics.CountBudget(parsed->budget);
  metrics.ObserveStage(Stage::kInput, Seconds(queue_.now() - call->arrival));
  call->outputs = parsed->outputs;
  call->seed = parsed->seed;
  call->priority = parsed->priority;
  call->tokens = parsed->tokens;

  auto task = std::make_unique<Task>();
  task->model = call->loaded;
  task->inputs = std::move(parsed->inputs);
  task->tokens = parsed->tokens;
  task->cost = parsed->cost;
  task->priority = parsed->priority;
  task->deadline = deadline;
  task->cancelled = std::move(cancelled);
  task->done = [this, call](TaskResult result) { Finish(*call, std::move(result)); };
  metrics.AddInFlight(1);
  metrics.AddQueued(1, static_cast<int64_t>(call->tokens));
  const absl::Status pushed = queue_.Push(std::move(task));
  if (pushed.ok()) return;  // from here on the call belongs to Finish
  metrics.AddQueued(-1, -static_cast<int64_t>(call->tokens));
  metrics.AddInFlight(-1);
  End(*call, pushed);
}

void Predictor::Finish(Call& call, TaskResult result) {
  LoadedMetrics& metrics = *call.loaded->metrics;
  const Time start = queue_.now();
  metrics.ObserveQueue(call.priority, result.queue_seconds);
  if (result.batch_inputs == 0) metrics.AddQueued(-1, -static_cast<int64_t>(call.tokens));
  if (result.status.ok()) {
    metrics.ObserveStage(Stage::kForward, result.compute_seconds);
    FillResponse(call, result, *call.response);
    for (size_t i = 0; i < result.results.size(); ++i) {
      metrics.ObserveInput(*call.loaded->model, result.inputs[i], result.results[i]);
    }
    metrics.ObserveStage(Stage::kOutput, Seconds(queue_.now() - start));
  }
  metrics.AddInFlight(-1);
  End(call, result.status, result.batch_inputs == 0 ? Rejection::kInvalid : Rejection::kOutOfMemory);
}

void Predictor::FillResponse(const Call& call, const TaskResult& result, v1::PredictResponse& response) {
  const Model& model = *call.loaded->model;
  response.set_model(call.loaded->name);
  response.set_version(call.loaded->version);
  for (size_t i = 0; i < result.results.size(); ++i) {
    FillPrediction(model.config(), result.inputs[i], result.results[i], call.outputs, *response.add_predictions());
  }
  response.set_seed(call.seed);
  v1::Timing& timing = *response.mutable_timing();
  timing.set_queue_us(Microseconds(result.queue_seconds));
  timing.set_compute_us(Microseconds(result.compute_seconds));
  timing.set_total_us(Microseconds(Seconds(queue_.now() - call.arrival)));
  timing.set_batch_inputs(result.batch_inputs);
  timing.set_batch_tokens(result.batch_tokens);
  response.set_device(model.backend().device());
  response.set_request_id(call.request_id);
}

void Predictor::End(Call& call, const absl::Status& status, Rejection invalid_as) {
  const Time now = queue_.now();
  const double seconds = Seconds(now - call.arrival);
  call.metrics->CountRequest(status.code(), seconds);
  const std::optional<Rejection> rejection = RejectionOf(status, invalid_as, draining());
  if (rejection) call.metrics->CountRejection(*rejection);
  const std::string code = absl::StatusCodeToString(status.code());
  if (status.ok()) {
    const v1::PredictResponse& response = *call.response;
    double edges = 0.0, pairs = 0.0;
    for (const v1::Prediction& prediction : response.predictions()) {
      edges += prediction.edges().edges();
      pairs += static_cast<double>(prediction.edges().pairs());
    }
    Log(LogLevel::kInfo, "request",
        {{"request_id", call.request_id},
         {"model", call.loaded->name},
         {"version", call.loaded->version},
         {"code", code},
         {"inputs", response.predictions_size()},
         {"samples", response.predictions_size() > 0 ? response.predictions(0).samples() : 0},
         {"edges", edges},
         {"density", pairs > 0.0 ? edges / pairs : 0.0},
         {"queue_us", response.timing().queue_us()},
         {"compute_us", response.timing().compute_us()},
         {"total_us", Microseconds(seconds)}});
  } else {
    uint64_t suppressed = 0;
    bool allowed;
    {
      std::lock_guard<std::mutex> lock(limiter_mutex_);
      allowed = limiter_.Allow(code, now, suppressed);
    }
    if (allowed) {
      Log(LogLevel::kWarning, "request",
          {{"request_id", call.request_id},
           {"model", call.model},
           {"code", code},
           {"error", std::string(status.message())},
           {"total_us", Microseconds(seconds)},
           {"suppressed", suppressed}});
    }
  }
  call.done(status);
  in_flight_.fetch_sub(1);
}

}  // namespace edgewise::server
