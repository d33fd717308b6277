#include "server/calls/predictor.h"

#include <memory>
#include <utility>

#include "server/calls/respond.h"
#include "text/status_macros.h"

namespace edgewise::server {

void Predictor::Predict(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
                        v1::PredictResponse* response, PredictDone done) {
  auto call = std::make_shared<PredictCall>();
  call->deadline = deadline;
  call->stopping = std::move(stopping);
  call->response = response;
  call->done = std::move(done);
  const absl::Status status = Start(request, call);
  if (status.ok()) return;
  calls_.CountEnd(*call, status);
  Tell(*call, status);
}

absl::Status Predictor::Start(const v1::PredictRequest& request, const std::shared_ptr<PredictCall>& call) {
  RETURN_IF_ERROR(calls_.Admit(*call, request.model(), request.version(), request.request_id()));
  ASSIGN_OR_RETURN(ParsedPredict parsed, ParsePredict(request, *call->loaded->model, options_.limits));
  call->outputs = parsed.outputs;
  return calls_.Queue(*call, std::move(parsed), [this, call](TaskResult result) { Finish(*call, std::move(result)); });
}

void Predictor::Finish(PredictCall& call, TaskResult result) {
  const bool ok = result.status.ok();
  const Time start = calls_.now();
  if (ok) FillResponse(call, result);
  const double output_seconds = Seconds(calls_.now() - start);
  double edges = 0.0, pairs = 0.0;
  {
    LoadedMetrics& metrics = *call.loaded->metrics;
    const MetricsEvent event = metrics.Event();
    for (size_t i = 0; ok && i < result.results.size(); ++i) {
      metrics.ObserveInput(*call.loaded->model, result.inputs[i], result.results[i]);
      edges += result.results[i].edges;
      pairs += static_cast<double>(result.results[i].pairs);
    }
    if (ok) metrics.ObserveStage(Stage::kForward, result.compute_seconds);
    if (ok) metrics.ObserveStage(Stage::kOutput, output_seconds);
    calls_.CountTask(call, result);
    calls_.CountEnd(call, result.status);
  }
  if (ok) {
    Log(LogLevel::kInfo, "request",
        {{"request_id", call.request_id},
         {"model", call.loaded->name},
         {"version", call.loaded->version},
         {"code", "OK"},
         {"inputs", static_cast<int>(result.results.size())},
         {"samples", result.results.empty() ? 0 : result.results.front().samples},
         {"edges", edges},
         {"density", pairs > 0.0 ? edges / pairs : 0.0},
         {"queue_us", Microseconds(result.queue_seconds)},
         {"compute_us", Microseconds(result.compute_seconds)},
         {"total_us", Microseconds(call.seconds)}});
  }
  Tell(call, result.status);
}

void Predictor::FillResponse(const PredictCall& call, const TaskResult& result) {
  v1::PredictResponse& response = *call.response;
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

void Predictor::Tell(PredictCall& call, const absl::Status& status) {
  calls_.LogRefusal(call, status);
  call.done(status);
  calls_.End();
}

}  // namespace edgewise::server
