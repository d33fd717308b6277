#include "server/calls/generator.h"

#include <algorithm>
#include <utility>

#include "server/calls/respond.h"
#include "text/status_macros.h"

namespace edgewise::server {

void Generator::Generate(const v1::GenerateRequest& request, Time deadline, std::stop_token stopping,
                         TokenStream* stream) {
  auto call = std::make_shared<GenerateCall>();
  call->deadline = deadline;
  call->stopping = std::move(stopping);
  call->stream = stream;
  const absl::Status status = Start(request, call);
  if (status.ok()) return;
  calls_.CountEnd(*call, status);
  Tell(*call, status);
}

absl::Status Generator::Start(const v1::GenerateRequest& request, const std::shared_ptr<GenerateCall>& call) {
  RETURN_IF_ERROR(calls_.Admit(*call, request.model(), request.version(), request.request_id()));
  ASSIGN_OR_RETURN(ParsedRequest parsed, ParseGenerate(request, *call->loaded->model, options_.limits));
  GenerationWork& work = *parsed.task->generation;
  call->last = call->arrival;
  call->prompt_tokens = parsed.task->tokens;
  call->samples = work.options.samples;
  call->truncated_tokens = work.prompt.truncated_tokens;
  work.ready = [call] { return call->stream->ready(); };
  work.token = [this, call](const GeneratedToken& token, const GenerationProgress& progress) {
    Send(*call, token, progress);
  };
  return calls_.Queue(*call, std::move(parsed), [this, call](TaskResult result) { Finish(*call, std::move(result)); });
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
  message.set_prompt_tokens(static_cast<uint32_t>(call.prompt_tokens));
  message.set_generated_tokens(call.sent);
  message.set_truncated_tokens(call.truncated_tokens);
  v1::Timing& timing = *message.mutable_timing();
  timing.set_queue_us(Microseconds(progress.queue_seconds));
  timing.set_compute_us(Microseconds(progress.compute_seconds));
  timing.set_total_us(Microseconds(Seconds(calls_.now() - call.arrival)));
  timing.set_batch_inputs(progress.running);
  timing.set_batch_tokens(call.prompt_tokens + call.sent);
}

void Generator::Finish(GenerateCall& call, TaskResult result) {
  {
    LoadedMetrics& metrics = *call.loaded->metrics;
    const MetricsEvent event = metrics.Event();
    if (result.status.ok()) {
      metrics.ObserveStage(Stage::kForward, result.compute_seconds);
      metrics.ObserveGeneration(call.prompt_tokens, call.samples, call.utilization, call.capped);
    }
    calls_.CountTask(call, result);
    calls_.CountEnd(call, result.status);
  }
  if (result.status.ok()) {
    Log(LogLevel::kInfo, "generation",
        {{"request_id", call.request_id},
         {"model", call.loaded->name},
         {"version", call.loaded->version},
         {"code", "OK"},
         {"prompt_tokens", call.prompt_tokens},
         {"generated_tokens", call.sent},
         {"samples", call.samples},
         {"edges", call.edges},
         {"density", call.pairs > 0.0 ? call.edges / call.pairs : 0.0},
         {"queue_us", Microseconds(call.progress.queue_seconds)},
         {"compute_us", Microseconds(call.progress.compute_seconds)},
         {"total_us", Microseconds(call.seconds)}});
  }
  Tell(call, result.status);
}

void Generator::Tell(GenerateCall& call, const absl::Status& status) {
  calls_.LogRefusal(call, status);
  call.stream->End(status);
  calls_.End();
}

}  // namespace edgewise::server
