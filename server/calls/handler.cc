#include "server/calls/handler.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "server/calls/respond.h"
#include "server/observe/metrics.h"
#include "server/schedule/degrade.h"
#include "server/status_details.h"
#include "server/validate/validate.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr size_t kMaxRequestId = 128;

bool HasImages(const v1::PredictRequest& message) {
  return std::any_of(message.inputs().begin(), message.inputs().end(),
                     [](const v1::Input& input) { return input.sequence().has_image() || input.second().has_image(); });
}
bool HasImages(const v1::GenerateRequest&) { return false; }  // it takes none

absl::Status CheckRequestId(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  REFUSE_IF(id.size() > kMaxRequestId || !printable, "request_id", "is ", Quoted(id), "; allowed are at most ",
            kMaxRequestId, " printable ASCII characters");
  return absl::OkStatus();
}

// That the cost of a message grows with, as far as it shows before the message is checked: see
// CostModel::LeastSeconds. 0: it is not known.
double SizeOf(const v1::PredictRequest& message, const Model& model, const RequestLimits& limits) {
  const v1::Budget& budget = message.budget();
  const bool fewer = budget.allow_degraded() || budget.fit_deadline() || message.ensemble().tolerance() > 0.0;
  if (fewer) return 0.0;                                              // it may get less than it asks for
  if (message.ensemble().samples() > limits.max_samples) return 0.0;  // it is wrong, not large
  // Samples that are all the same are computed once.
  const bool differ = message.attention() == v1::MODEL_DEFAULT && !message.has_override() && model.Samples({}) &&
                      std::none_of(message.inputs().begin(), message.inputs().end(),
                                   [](const v1::Input& input) { return input.has_graph(); });
  const uint32_t samples = differ ? std::max<uint32_t>(1, message.ensemble().samples()) : 1;
  return static_cast<double>(message.ByteSizeLong()) * samples;
}
double SizeOf(const v1::GenerateRequest&, const Model&, const RequestLimits&) { return 0.0; }

void FillTiming(const Request& request, double total_seconds, v1::Timing& timing) {
  timing.set_queue_us(Microseconds(request.queue_seconds));
  timing.set_compute_us(Microseconds(request.compute_seconds));
  timing.set_total_us(Microseconds(total_seconds));
  timing.set_batch_inputs(request.batch_inputs);
  timing.set_batch_tokens(request.batch_tokens);
}

void LogAnswer(const Request& request, double seconds) {
  const GenerationWork* work = request.generation.get();
  std::vector<LogField> fields = {
      {"request_id", request.id}, {"model", request.model->name}, {"version", request.model->version}, {"code", "OK"}};
  if (work) {
    fields.insert(fields.end(), {{"prompt_tokens", request.tokens}, {"generated_tokens", work->sent}});
  } else {
    fields.push_back({"inputs", request.inputs.size()});
  }
  fields.insert(fields.end(), {{"samples", work ? work->options.samples : request.results.front().samples},
                               {"edges", request.edges},
                               {"density", request.pairs > 0.0 ? request.edges / request.pairs : 0.0},
                               {"queue_us", Microseconds(request.queue_seconds)},
                               {"compute_us", Microseconds(request.compute_seconds)},
                               {"total_us", Microseconds(seconds)}});
  Log(LogLevel::kInfo, work ? "generation" : "request", fields);
}

}  // namespace

template <typename Message>
void RequestHandler::Start(const Message& message, Request of_rpc, bool* lent) {
  in_flight_.fetch_add(1);
  auto request = std::make_unique<Request>(std::move(of_rpc));
  Request& started = *request;
  if (started.arrival == Time()) started.arrival = now();
  started.done = [this, &started](const absl::Status& status) { Finish(started, status); };
  RequestBounds bounds(started, [&] { return CheckWanted(started.stopping, started.deadline); });
  bool apart = !started.apart && !draining() && HasImages(message);
  absl::Status status = apart ? absl::OkStatus() : Admit(message, bounds, started);
  apart |= bounds.exceeded();
  if (apart) {
    StartApart(message, started);
    in_flight_.fetch_sub(1);
    return;
  }
  if (status.ok()) status = queue_.Push(request, lent);
  if (!status.ok()) Finish(started, status);
}
template void RequestHandler::Start(const v1::PredictRequest&, Request, bool*);
template void RequestHandler::Start(const v1::GenerateRequest&, Request, bool*);

template <typename Message>
void RequestHandler::StartApart(const Message& message, Request& request) {
  auto of_rpc = std::make_unique<Request>(Request{.rpc = request.rpc,
                                                  .deadline = request.deadline,
                                                  .stopping = std::move(request.stopping),
                                                  .principal = std::move(request.principal),
                                                  .reply = std::move(request.reply),
                                                  .response = request.response,
                                                  .stream = request.stream,
                                                  .memory = request.memory,
                                                  .apart = true,
                                                  .arrival = request.arrival});
  const std::string principal = of_rpc->principal.name;
  preparations_.Start(principal, [this, copy = std::make_unique<Message>(message),
                                  request = std::move(of_rpc)](const absl::Status& refused) {
    const absl::Status status = refused.ok() ? CheckWanted(request->stopping, request->deadline) : refused;
    if (status.ok()) return Start(*copy, std::move(*request));
    CountUnadmitted(*copy, status);
    request->reply(status);
  });
}

template <typename Message>
absl::Status RequestHandler::Admit(const Message& message, WorkBounds& bounds, Request& request) {
  Resolved resolved = repository_.Resolve(message.model(), message.version());
  request.metrics = resolved.metrics;
  if (absl::IsInvalidArgument(resolved.status)) return resolved.status;
  RETURN_IF_ERROR(CheckRequestId(message.request_id()));
  request.id = message.request_id();
  request.model_name = message.model();
  if (draining() && !request.apart) return ShuttingDown();
  RETURN_IF_ERROR(resolved.status);
  if (request.arrival >= request.deadline) return absl::DeadlineExceededError("the deadline has passed");
  request.model = std::move(resolved.loaded);
  const double size = SizeOf(message, *request.model->model, options_.limits);
  RETURN_IF_ERROR(CheckEarly(message.priority(), size, request));
  if constexpr (std::is_same_v<Message, v1::GenerateRequest>) {
    if (message.messages_size() > 0) request.local_time = options_.local_time();
  }
  RETURN_IF_ERROR(Validate(message, *request.model->model, request.model->profiles, options_.limits, request, bounds));
  if (request.memory) RETURN_IF_ERROR(request.memory->Resize(request.held_bytes));
  request.priority = std::max(request.priority, request.principal.highest_level);
  if (request.generation) ConnectStream(request);
  CostModel& costs = *request.model->costs;
  if constexpr (std::is_same_v<Message, v1::PredictRequest>) {
    PredictCost(request);
    costs.ObserveRequest(request.demand);
    shadows_.Prepare(message, request);
  } else {
    request.predicted_seconds =
        costs.PredictGeneration(static_cast<double>(request.tokens), request.generation->options.max_new_tokens);
  }
  costs.ObserveSize(size, LeastSeconds(request));
  request.model->metrics->CountValid(request, Seconds(now() - request.arrival));
  return absl::OkStatus();
}

absl::Status RequestHandler::CheckEarly(uint32_t priority, double size, Request& request) {
  request.predicted_seconds = request.model->costs->LeastSeconds(size);
  if (request.predicted_seconds == 0.0 || priority > kPriorityLevels) return absl::OkStatus();
  if (priority != 0) request.priority = priority;
  request.priority = std::max(request.priority, request.principal.highest_level);
  return queue_.Check(request);
}

absl::Status RequestHandler::CheckWanted(const std::stop_token& stopping, Time deadline) const {
  return cancelled_.load(std::memory_order_relaxed) ? ShuttingDown() : CancelledOrExpired(stopping, deadline, now());
}

void RequestHandler::ConnectStream(Request& request) {
  GenerationWork& work = *request.generation;
  work.last_sent = request.arrival;
  work.ready = [&request] { return request.stream->ready(); };
  work.token = [this, &request](const GeneratedToken& token, FinishReason finish) { Send(request, token, finish); };
}

void RequestHandler::Send(Request& request, const GeneratedToken& token, FinishReason finish) {
  GenerationWork& work = *request.generation;
  const RowEdges& row = token.edges;
  const Time now = queue_.now();
  request.model->metrics->CountToken(request, row, Seconds(now - work.last_sent));
  work.last_sent = now;
  ++work.sent;
  request.batch_tokens = request.tokens + work.sent;
  request.edges += row.edges;
  request.pairs += static_cast<double>(row.pairs);
  work.capped |= row.capped;
  if (row.budget > 0) {
    work.utilization =
        std::max(work.utilization, static_cast<double>(row.max_sample_edges) / static_cast<double>(row.budget));
  }
  auto message = std::make_unique<v1::GenerateResponse>();
  FillToken(request, token, finish, *message);
  if (message->done()) FillTiming(request, Seconds(queue_.now() - request.arrival), *message->mutable_timing());
  request.stream->Send(std::move(message));
}

void RequestHandler::Finish(Request& request, const absl::Status& status) {
  const bool answered = status.ok();
  const Time computed = now();
  if (answered && request.response) FillResponse(request, *request.response);
  const Time end = now();
  const double seconds = Seconds(end - request.arrival);
  if (answered && request.response) FillTiming(request, seconds, *request.response->mutable_timing());
  {
    const MetricsEvent event = request.metrics->Event();
    request.metrics->CountRequest(event, request.rpc, status, seconds);
    if (request.queued != Time()) {
      request.model->metrics->CountEnd(event, request, answered, Seconds(end - computed));
    }
    request.gauges = {};
  }
  if (answered && request.generation) {
    request.model->costs->ObserveLength(request.generation->sent, request.generation->options.max_new_tokens);
  }
  request.reply(status);
  answered ? LogAnswer(request, seconds) : LogRefusal(request, status, seconds);
  if (answered && request.shadow) shadows_.Start(request);
  in_flight_.fetch_sub(1);
}

void RequestHandler::LogRefusal(const Request& request, const absl::Status& status, double seconds) {
  const std::string code = absl::StatusCodeToString(status.code());
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&limiter_mutex_);
    if (!limiter_.Allow(code, now(), suppressed)) return;
  }
  Log(LogLevel::kWarning, "request",
      {{"request_id", request.id},
       {"model", request.model_name},
       {"code", code},
       {"error", std::string(status.message())},
       {"total_us", Microseconds(seconds)},
       {"suppressed", suppressed}});
}

template <typename Message>
void RequestHandler::CountUnadmitted(const Message& message, const absl::Status& status) {
  const std::shared_ptr<ModelMetrics> metrics = repository_.Resolve(message.model(), message.version()).metrics;
  const Rpc rpc = std::is_same_v<Message, v1::GenerateRequest> ? Rpc::kGenerate : Rpc::kPredict;
  metrics->CountRequest(metrics->Event(), rpc, status, 0.0);
}
template void RequestHandler::CountUnadmitted(const v1::PredictRequest&, const absl::Status&);
template void RequestHandler::CountUnadmitted(const v1::GenerateRequest&, const absl::Status&);

void RequestHandler::CountUnread(Rpc rpc, const absl::Status& status) {
  const std::shared_ptr<ModelMetrics>& metrics = repository_.unknown_metrics();
  metrics->CountRequest(metrics->Event(), rpc, status, 0.0);
}

}  // namespace edgewise::server
