#include "server/calls/generator.h"

#include <algorithm>
#include <utility>

#include "server/calls/respond.h"

namespace edgewise::server {

void Generator::Generate(const v1::GenerateRequest& request, Time deadline, std::stop_token stopping,
                         TokenStream* stream) {
  auto call = std::make_shared<GenerateCall>();
  call->stream = stream;
  calls_.Begin(*call, request.model(), request.version());
  call->last = call->arrival;
  Start(request, deadline, std::move(stopping), std::move(call));
}

void Generator::Start(const v1::GenerateRequest& request, Time deadline, std::stop_token stopping,
                      std::shared_ptr<GenerateCall> call) {
  const absl::Status admitted = calls_.Admit(*call, request.model(), request.version(), request.request_id(), deadline);
  if (!admitted.ok()) return End(*call, admitted);
  absl::StatusOr<ParsedGeneration> parsed = ParseGeneration(request, *call->loaded->model, options_.limits);
  if (!parsed.ok()) return End(*call, parsed.status());
  calls_.CountValid(*call, parsed->budget);
  call->seed = parsed->seed;
  call->priority = parsed->priority;
  call->tokens = parsed->tokens;
  call->samples = parsed->work->options.samples;
  call->truncated_tokens = parsed->truncated_tokens;

  auto task = std::make_unique<Task>();
  task->model = call->loaded;
  task->generation = std::move(parsed->work);
  task->generation->ready = [call] { return call->stream->ready(); };
  task->generation->token = [this, call](const GeneratedToken& token, const GenerationProgress& progress) {
    Send(*call, token, progress);
  };
  task->tokens = parsed->tokens;
  task->cost = parsed->cost;
  task->priority = parsed->priority;
  task->deadline = deadline;
  task->stopping = std::move(stopping);
  task->done = [this, call](const TaskResult& result) { Finish(*call, result); };
  const absl::Status pushed = calls_.Push(*call, std::move(task));
  if (!pushed.ok()) End(*call, pushed);
}

void Generator::Send(GenerateCall& call, const GeneratedToken& token, const GenerationProgress& progress) {
  const bool first = call.sent++ == 0;
  const bool last = progress.finish != FinishReason::kNone;
  const Time now = calls_.now();
  LoadedMetrics& metrics = *call.loaded->metrics;
  metrics.ObserveToken(*call.loaded->model, token.edges, call.samples, first, Seconds(now - call.last));
  call.last = now;
  call.edges += token.edges.edges;
  call.pairs += static_cast<double>(token.edges.pairs);
  call.capped |= token.edges.capped;
  if (token.edges.budget > 0) {
    call.utilization = std::max(
        call.utilization, static_cast<double>(token.edges.max_sample_edges) / static_cast<double>(token.edges.budget));
  }
  call.progress = progress;

  auto message = std::make_unique<v1::GenerateResponse>();
  message->set_token_id(token.token_id);
  message->set_text(token.text);
  message->set_log_probability(token.log_probability);
  FillRowEdges(token.edges, *message->mutable_edges());
  if (first || last) {
    message->set_seed(call.seed);
    message->set_model(call.loaded->name);
    message->set_version(call.loaded->version);
    message->set_device(call.loaded->model->backend().device());
    message->set_request_id(call.request_id);
  }
  if (last) FillEnd(call, progress, *message);
  call.stream->Send(std::move(message));
}

void Generator::FillEnd(const GenerateCall& call, const GenerationProgress& progress, v1::GenerateResponse& message) {
  message.set_done(true);
  message.set_finish_reason(progress.finish == FinishReason::kStop ? "stop" : "length");
  message.set_prompt_tokens(static_cast<uint32_t>(call.tokens));
  message.set_generated_tokens(call.sent);
  message.set_truncated_tokens(call.truncated_tokens);
  v1::Timing& timing = *message.mutable_timing();
  timing.set_queue_us(Microseconds(progress.queue_seconds));
  timing.set_compute_us(Microseconds(progress.compute_seconds));
  timing.set_total_us(Microseconds(Seconds(calls_.now() - call.arrival)));
  timing.set_batch_inputs(progress.running);
  timing.set_batch_tokens(call.tokens + call.sent);
}

void Generator::Finish(GenerateCall& call, const TaskResult& result) {
  const bool ran = result.batch_inputs > 0;
  {
    LoadedMetrics& metrics = *call.loaded->metrics;
    const MetricsEvent event = metrics.Event();
    calls_.Left(call, result);
    if (ran) metrics.AddGenerations(-1);
    if (result.status.ok()) {
      metrics.ObserveStage(Stage::kForward, result.compute_seconds);
      metrics.ObserveGeneration(call.tokens, call.samples, call.utilization, call.capped);
    }
    const Rejection by_model = absl::IsInvalidArgument(result.status) ? Rejection::kBudget : Rejection::kOutOfMemory;
    Count(call, result.status, ran ? by_model : Rejection::kInvalid);
  }
  Tell(call, result.status);
}

void Generator::End(GenerateCall& call, const absl::Status& status, Rejection invalid_as) {
  Count(call, status, invalid_as);
  Tell(call, status);
}

void Generator::Count(GenerateCall& call, const absl::Status& status, Rejection invalid_as) {
  const MetricsEvent event = call.metrics->Event();
  call.seconds = Seconds(calls_.now() - call.arrival);
  call.metrics->CountGeneration(status.code(), call.seconds);
  calls_.CountRefusal(call, status, invalid_as);
}

void Generator::Tell(GenerateCall& call, const absl::Status& status) {
  calls_.LogRefusal(call, status);
  if (status.ok()) {
    Log(LogLevel::kInfo, "generation",
        {{"request_id", call.request_id},
         {"model", call.loaded->name},
         {"version", call.loaded->version},
         {"code", "OK"},
         {"prompt_tokens", call.tokens},
         {"generated_tokens", call.sent},
         {"samples", call.samples},
         {"edges", call.edges},
         {"density", call.pairs > 0.0 ? call.edges / call.pairs : 0.0},
         {"queue_us", Microseconds(call.progress.queue_seconds)},
         {"compute_us", Microseconds(call.progress.compute_seconds)},
         {"total_us", Microseconds(call.seconds)}});
  }
  call.stream->End(status);
  calls_.End();
}

}  // namespace edgewise::server
