#include "server/predictor.h"

#include <utility>

#include "server/respond.h"

namespace edgewise::server {

void Predictor::Predict(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
                        v1::PredictResponse* response, PredictDone done) {
  auto call = std::make_shared<PredictCall>();
  call->response = response;
  call->done = std::move(done);
  calls_.Begin(*call, request.model(), request.version());
  Start(request, deadline, std::move(stopping), std::move(call));
}

void Predictor::Start(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
                      std::shared_ptr<PredictCall> call) {
  const absl::Status admitted = calls_.Admit(*call, request.model(), request.version(), request.request_id(), deadline);
  if (!admitted.ok()) return End(*call, admitted);
  bool budget_refused = false;
  absl::StatusOr<ParsedRequest> parsed = ParseRequest(request, *call->loaded->model, options_.limits, &budget_refused);
  if (!parsed.ok()) {
    return End(*call, parsed.status(), budget_refused ? Rejection::kBudget : Rejection::kInvalid);
  }
  LoadedMetrics& metrics = *call->loaded->metrics;
  metrics.CountBudget(parsed->budget);
  metrics.ObserveStage(Stage::kInput, Seconds(calls_.now() - call->arrival));
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
  task->stopping = std::move(stopping);
  task->done = [this, call](TaskResult result) { Finish(*call, std::move(result)); };
  const absl::Status pushed = calls_.Push(*call, std::move(task));
  if (!pushed.ok()) End(*call, pushed);
}

void Predictor::Finish(PredictCall& call, TaskResult result) {
  LoadedMetrics& metrics = *call.loaded->metrics;
  const Time start = calls_.now();
  calls_.Left(call, result);
  if (result.status.ok()) {
    metrics.ObserveStage(Stage::kForward, result.compute_seconds);
    FillResponse(call, result, *call.response);
    for (size_t i = 0; i < result.results.size(); ++i) {
      metrics.ObserveInput(*call.loaded->model, result.inputs[i], result.results[i]);
    }
    metrics.ObserveStage(Stage::kOutput, Seconds(calls_.now() - start));
  }
  metrics.AddInFlight(-1);
  End(call, result.status, result.batch_inputs == 0 ? Rejection::kInvalid : Rejection::kOutOfMemory);
}

void Predictor::FillResponse(const PredictCall& call, const TaskResult& result, v1::PredictResponse& response) {
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
  timing.set_total_us(Microseconds(Seconds(calls_.now() - call.arrival)));
  timing.set_batch_inputs(result.batch_inputs);
  timing.set_batch_tokens(result.batch_tokens);
  response.set_device(model.backend().device());
  response.set_request_id(call.request_id);
}

void Predictor::End(PredictCall& call, const absl::Status& status, Rejection invalid_as) {
  const double seconds = Seconds(calls_.now() - call.arrival);
  call.metrics->CountRequest(status.code(), seconds);
  calls_.Refuse(call, status, invalid_as);
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
         {"code", "OK"},
         {"inputs", response.predictions_size()},
         {"samples", response.predictions_size() > 0 ? response.predictions(0).samples() : 0},
         {"edges", edges},
         {"density", pairs > 0.0 ? edges / pairs : 0.0},
         {"queue_us", response.timing().queue_us()},
         {"compute_us", response.timing().compute_us()},
         {"total_us", Microseconds(seconds)}});
  }
  call.done(status);
  calls_.End();
}

}  // namespace edgewise::server
