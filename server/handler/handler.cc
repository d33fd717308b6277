#include "server/handler/handler.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/base/status_details.h"
#include "server/handler/respond.h"
#include "server/observe/metrics.h"
#include "server/schedule/degrade.h"
#include "server/validate/validate.h"

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
  if (fewer) return 0.0;  // it may get less than it asks for
  const bool wrong = message.ensemble().samples() > limits.max_samples || message.priority() > kPriorityLevels;
  if (wrong) return 0.0;
  // Samples that are all the same are computed once.
  const bool differ = message.attention() == v1::MODEL_DEFAULT && !message.has_override() && model.Samples({}) &&
                      std::none_of(message.inputs().begin(), message.inputs().end(),
                                   [](const v1::Input& input) { return input.has_graph(); });
  const uint32_t samples = differ ? std::max<uint32_t>(1, message.ensemble().samples()) : 1;
  return static_cast<double>(message.ByteSizeLong()) * samples;
}
double SizeOf(const v1::GenerateRequest&, const Model&, const RequestLimits&) { return 0.0; }

// The level of a request; of a priority that is none, the default one: the check of the message refuses it.
uint32_t LevelOf(uint32_t priority, const Principal& principal) {
  const bool given = priority > 0 && priority <= kPriorityLevels;
  return std::max(given ? priority : kDefaultPriority, principal.highest_level);
}

constexpr uint64_t kJsonOfByte = 3;  // a float of 4 bytes has some 12 characters

// Whether a message of this size is a long answer to the request.
bool IsLongAnswer(const Ticket& ticket, uint64_t bytes) {
  return bytes > kShortAnswer / (ticket.json ? kJsonOfByte : 1);
}

void FillTiming(const Request& request, double total_seconds, v1::Timing& timing) {
  const Outcome& outcome = request.outcome;
  timing.set_queue_us(Microseconds(outcome.queue_seconds));
  timing.set_compute_us(Microseconds(outcome.compute_seconds));
  timing.set_total_us(Microseconds(total_seconds));
  timing.set_batch_inputs(outcome.batch_inputs);
  timing.set_batch_tokens(request.work.generation ? request.work.tokens + outcome.generated.tokens
                                                  : outcome.batch_tokens);
}

// For the log of the call.
void AddWork(const Request& request, Call& call) {
  const Outcome& outcome = request.outcome;
  const bool generates = request.work.generation.has_value();
  const absl::MutexLock lock(&call.mutex);
  CallWork& work = call.work;
  ++work.requests;
  call.version = request.ticket.model->version;
  work.generates |= generates;
  work.inputs += request.work.inputs.size();
  if (generates) work.prompt_tokens += request.work.tokens;
  work.generated_tokens += outcome.generated.tokens;
  work.samples = std::max(work.samples, generates ? request.forecast.samples : outcome.results.front().samples);
  work.edges += outcome.generated.edges;
  work.pairs += outcome.generated.pairs;
  for (const InputResult& result : outcome.results) {
    work.edges += result.edges;
    work.pairs += static_cast<double>(result.pairs);
  }
  work.queue_seconds = std::max(work.queue_seconds, outcome.queue_seconds);
  work.compute_seconds += outcome.compute_seconds;
}

}  // namespace

template <typename Message>
void RequestHandler::Start(const Message& message, Ticket ticket) {
  in_flight_.fetch_add(1);
  if (ticket.call != nullptr) ticket.call->started = true;
  if (ticket.arrival == Time()) ticket.arrival = queue_.now();
  RequestBounds bounds(ticket, [&] { return CheckWanted(ticket.stopping, ticket.deadline); });
  bool apart = !ticket.apart && !draining() && HasImages(message);
  absl::StatusOr<RequestPtr> request = nullptr;
  if (!apart) request = Admit(message, bounds, ticket);
  apart |= bounds.exceeded();
  if (apart) {
    StartApart(message, std::move(ticket));
  } else if (!request.ok()) {
    Refuse(ticket, request.status());
  } else {
    Request& admitted = **request;
    const absl::Status status = queue_.Push(*request);
    if (!status.ok()) Finish(admitted, status);
    return;
  }
  in_flight_.fetch_sub(1);
}
template void RequestHandler::Start(const v1::PredictRequest&, Ticket);
template void RequestHandler::Start(const v1::GenerateRequest&, Ticket);

template <typename Message>
void RequestHandler::StartApart(const Message& message, Ticket ticket) {
  if (ticket.memory != nullptr) {  // of the copy; once it is checked, of what is made of it
    const absl::Status held = ticket.memory->Resize(ticket.memory->bytes() + message.SpaceUsedLong());
    if (!held.ok()) {
      ticket.metrics = repository_.Resolve(message.model(), message.version()).metrics;
      return Refuse(ticket, held);
    }
  }
  ticket.apart = true;
  ticket.model = nullptr;  // it may be unloaded meanwhile
  const std::string principal = ticket.principal.name;
  preparations_.Start(principal, [this, copy = std::make_unique<Message>(message),
                                  ticket = std::make_unique<Ticket>(std::move(ticket))](const absl::Status& refused) {
    const absl::Status status = refused.ok() ? CheckWanted(ticket->stopping, ticket->deadline) : refused;
    if (status.ok()) return Start(*copy, std::move(*ticket));
    ticket->metrics = repository_.Resolve(copy->model(), copy->version()).metrics;
    Refuse(*ticket, status);
  });
}

template <typename Message>
absl::StatusOr<RequestPtr> RequestHandler::Admit(const Message& message, WorkBounds& bounds, Ticket& ticket) {
  Resolved resolved = repository_.Resolve(message.model(), message.version());
  ticket.metrics = resolved.metrics;
  if (ticket.call != nullptr) Name(*ticket.call, message.model(), resolved);
  if (absl::IsInvalidArgument(resolved.status)) return resolved.status;
  RETURN_IF_ERROR(CheckRequestId(message.request_id()));
  ticket.id = message.request_id();
  if (ticket.call != nullptr) {
    const absl::MutexLock lock(&ticket.call->mutex);
    ticket.call->request_id = ticket.id;
  }
  if (draining() && !ticket.apart) return ShuttingDown();
  RETURN_IF_ERROR(resolved.status);
  if (ticket.arrival >= ticket.deadline) return absl::DeadlineExceededError("the deadline has passed");
  ticket.model = std::move(resolved.loaded);
  ticket.priority = LevelOf(message.priority(), ticket.principal);
  const LoadedModel& loaded = *ticket.model;
  const double size = SizeOf(message, *loaded.model, options_.limits);
  const double least = loaded.costs->LeastSeconds(size);
  if (least > 0.0) RETURN_IF_ERROR(queue_.Check(ticket, least));  // its size alone shows that it cannot be in time
  CallTerms terms = {.deadline = ticket.deadline, .stopping = ticket.stopping};
  if constexpr (std::is_same_v<Message, v1::GenerateRequest>) {
    if (message.messages_size() > 0) terms.local_time = options_.local_time();
  }
  ASSIGN_OR_RETURN(Work work, Validate(message, *loaded.model, loaded.profiles, options_.limits, terms, bounds));
  if (ticket.memory) RETURN_IF_ERROR(ticket.memory->Resize(work.held_bytes));
  auto request = std::make_unique<Request>();
  request->work = std::move(work);
  request->forecast = MakeForecast(loaded, request->work);
  request->ticket = std::move(ticket);
  Connect(*request);
  if constexpr (std::is_same_v<Message, v1::PredictRequest>) {
    loaded.costs->ObserveRequest(request->forecast.demand, size, LeastSeconds(*request));
    if (loaded.profiles.shadow) shadows_.Prepare(message, *loaded.profiles.shadow, *request);
  }
  loaded.metrics->CountValid(*request, Seconds(queue_.now() - request->ticket.arrival));
  return request;
}

absl::Status RequestHandler::CheckWanted(const std::stop_token& stopping, Time deadline) const {
  return cancelled_.load(std::memory_order_relaxed) ? ShuttingDown()
                                                    : CancelledOrExpired(stopping, deadline, queue_.now());
}

void RequestHandler::Connect(Request& request) {
  request.done = [this, &request](const absl::Status& status) { Finish(request, status); };
  if (!request.work.generation) return;
  request.outcome.generated.last = request.ticket.arrival;
  request.ready = [&ticket = request.ticket] {
    return (ticket.line == nullptr || ticket.line->idle()) && ticket.stream->ready();
  };
  request.token = [this, &request](const GeneratedToken& token, FinishReason finish) { Send(request, token, finish); };
}

void RequestHandler::Send(Request& request, const GeneratedToken& token, FinishReason finish) {
  Outcome::Generated& generated = request.outcome.generated;
  const RowEdges& row = token.edges;
  const Time now = queue_.now();
  request.ticket.model->metrics->CountToken(request, row, Seconds(now - generated.last));
  generated.last = now;
  ++generated.tokens;
  generated.edges += row.edges;
  generated.pairs += static_cast<double>(row.pairs);
  generated.capped |= row.capped;
  if (row.budget > 0) {
    generated.utilization =
        std::max(generated.utilization, static_cast<double>(row.max_sample_edges) / static_cast<double>(row.budget));
  }
  auto message = std::make_unique<v1::GenerateResponse>();
  FillToken(request, token, finish, *message);
  if (message->done()) {
    FillTiming(request, Seconds(queue_.now() - request.ticket.arrival), *message->mutable_timing());
  }
  const Ticket& ticket = request.ticket;
  const bool here = ticket.line == nullptr || (ticket.line->idle() && !IsLongAnswer(ticket, message->ByteSizeLong()));
  if (here) return ticket.stream->Send(std::move(message));
  ticket.line->Add(
      [&stream = *ticket.stream, message = std::move(message)]() mutable { stream.Send(std::move(message)); });
}

void RequestHandler::Finish(Request& request, const absl::Status& status) {
  Ticket& ticket = request.ticket;
  const bool fills = status.ok() && ticket.response != nullptr;
  const bool is_long = fills && IsLongAnswer(ticket, request.work.answer_bytes + ticket.more_bytes);
  if (!is_long && (ticket.line == nullptr || ticket.line->idle())) return End(request, status);
  if (fills) {
    const auto write = [this, kept = request.shared_from_this()] {
      End(*kept, CheckWanted(kept->ticket.stopping, kept->ticket.deadline));
    };
    if (ticket.line) return ticket.line->Add(write);
    return answers_.Start(ticket.principal.name, [write](const absl::Status&) { write(); });
  }
  ticket.reply = [line = ticket.line, reply = std::move(ticket.reply)](const absl::Status& end) {
    line->Add([reply, end] { reply(end); });
  };
  End(request, status);
}

void RequestHandler::End(Request& request, absl::Status status) {
  const Ticket& ticket = request.ticket;
  const Time computed = queue_.now();
  if (status.ok() && ticket.response) {
    const auto wanted = [&] { return CheckWanted(ticket.stopping, ticket.deadline); };
    status = FillResponse(request, wanted, *ticket.response);
  }
  const bool answered = status.ok();
  const Time end = queue_.now();
  const double seconds = Seconds(end - ticket.arrival);
  if (answered && ticket.response) FillTiming(request, seconds, *ticket.response->mutable_timing());
  {
    const MetricsEvent event = ticket.metrics->Event();
    ticket.metrics->CountRequest(event, ticket.rpc, status, seconds);
    if (request.outcome.queued != Time()) {
      ticket.model->metrics->CountEnd(event, request, answered, Seconds(end - computed));
    }
    request.gauges = {};
  }
  if (answered && request.work.generation) {
    ticket.model->costs->ObserveLength(request.outcome.generated.tokens,
                                       request.work.generation->options.max_new_tokens);
  }
  if (answered && ticket.call != nullptr) AddWork(request, *ticket.call);
  ticket.reply(status);
  if (answered && request.shadow) shadows_.Start(request);
  in_flight_.fetch_sub(1);
}

void RequestHandler::Refuse(const Ticket& ticket, const absl::Status& status) {
  ticket.metrics->CountRequest(ticket.metrics->Event(), ticket.rpc, status, Seconds(queue_.now() - ticket.arrival));
  ticket.reply(status);
}

void RequestHandler::Name(Call& call, const std::string& model, const Resolved& resolved) const {
  const absl::MutexLock lock(&call.mutex);
  call.metrics = resolved.metrics;
  call.model = resolved.metrics == repository_.unknown_metrics() ? "" : model;
}

}  // namespace edgewise::server
