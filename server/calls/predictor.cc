#include "server/calls/predictor.h"

#include <utility>

#include "server/calls/respond.h"

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
  calls_.CountValid(*call, parsed->budget);
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
  const Time start = calls_.now();
  if (result.status.ok()) FillResponse(call, result, *call.response);
  const double output_seconds = Seconds(calls_.now() - start);
  {
    LoadedMetrics& metrics = *call.loaded->metrics;
    const MetricsEvent event = metrics.Event();
    calls_.Left(call, result);
    if (result.status.ok()) {
      for (size_t i = 0; i < result.results.size(); ++i) {
        metrics.ObserveInput(*call.loaded->model, result.inputs[i], result.results[i]);
      }
      metrics.ObserveStage(Stage::kForward, result.compute_seconds);
      metrics.ObserveStage(Stage::kOutput, output_seconds);
    }
    Count(call, result.status, result.batch_inputs == 0 ? Rejection::kInvalid : Rejection::kOutOfMemory);
  }
  Tell(call, result.status);
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
  Count(call, status, invalid_as);
  Tell(call, status);
}

void Predictor::Count(PredictCall& call, const absl::Status& status, Rejection invalid_as) {
  const MetricsEvent event = call.metrics->Event();
  call.seconds = Seconds(calls_.now() - call.arrival);
  call.metrics->CountRequest(status.code(), call.seconds);
  calls_.CountRefusal(call, status, invalid_as);
}

void Predictor::Tell(PredictCall& call, const absl::Status& status) {
  calls_.LogRefusal(call, status);
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
         {"total_us", Microseconds(call.seconds)}});
  }
  call.done(status);
  calls_.End();
}

}  // namespace edgewise::server
