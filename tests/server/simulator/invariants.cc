// What must hold at every time of a simulation.
#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/observe/metrics.h"
#include "tests/model/run_model.h"
#include "tests/server/retry_delay.h"
#include "tests/server/simulator/simulation.h"

namespace edgewise::server {
namespace {

constexpr double kRounding = 1e-6;  // seconds
// A client that cancels at its deadline is late even where this clock is behind its own (CancelledOrExpired).
constexpr auto kClocksApart = std::chrono::milliseconds(5);

bool Waits(const Request& request) { return request.gauges.queued != nullptr; }

}  // namespace

void Simulation::Say(const std::string& what) {
  trace_.push_back(absl::StrCat(static_cast<int64_t>(Seconds(now_ - kBegin) * 1e6), " us: ", what));
}

void Simulation::Require(bool holds, const std::string& what) {
  if (holds || !violation_.empty()) return;
  violation_ = what;
  Say("VIOLATION: " + what);
}

double Simulation::SlackOf(const Call& call, Time at) {
  return call.deadline == Time::max() ? 1e9 : Seconds(call.deadline - at);
}

// Refused at the door: only work that goes first, a full line, or the request itself is a reason.
void Simulation::OnRefused(const Call& call, const absl::Status& status) {
  ++counts_.refused;
  Say(absl::StrCat(call.number, " is refused: ", status.ToString()));
  // Between two turns the queue does not know yet that passes have ended.
  const bool alone = calls_.size() == 1 && !between_turns_;
  const bool cancelled = call.cancelled <= now_;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return Require(closed_, "only a closed queue is unavailable");
    case absl::StatusCode::kResourceExhausted:
      Require(!alone, "an idle server takes every request");
      return Require(RetryDelay(status) > 0.0, "a refusal says when to come again");
    case absl::StatusCode::kDeadlineExceeded:
      return Require(call.deadline <= now_ || (cancelled && call.deadline - kClocksApart <= now_) ||
                         (!alone && call.predicted > SlackOf(call, now_)),
                     "who is late at the door has a deadline that cannot be met");
    case absl::StatusCode::kCancelled:
      return Require(cancelled, "only who cancelled is cancelled at the door");
    default:
      Require(false, "a refusal of this code has no reason");
  }
}

void Simulation::OnToken(Call& call, const GeneratedToken& token, FinishReason finish) {
  ++counts_.tokens;
  const std::vector<GeneratedToken>& tokens = call.alone->tokens;
  Require(call.request != nullptr, "no token comes after the end");
  Require(!call.finished, "no token comes after the last one");
  Require(call.unread < scenario_.unread_limit, "no token goes to a client that takes none");
  Require(call.tokens < tokens.size() && SameToken(token, tokens[call.tokens]), "a token is the one that comes alone");
  call.finished = finish != FinishReason::kNone;
  ++call.tokens;
  Require(!call.finished || call.tokens == tokens.size(), "a text ends where it ends alone");
  call.ever_unread |= ++call.unread >= scenario_.unread_limit;
  call.last_token = now_;
  Read(call);
}

void Simulation::OnEnd(Call& call, const Request& request, const absl::Status& status) {
  Require(++call.answers == 1, "one status for every request");
  if (call.answers > 1) return;
  Say(absl::StrCat(call.number, " ends: ", status.ToString()));
  changed_ = true;
  if (!Waits(request)) NoteStart(call);
  const double total = Seconds(now_ - call.pushed);
  Require(request.outcome.queue_seconds >= 0.0 &&
              request.outcome.queue_seconds + request.outcome.compute_seconds <= total + kRounding,
          "waiting and computing take no longer than the request");
  Require(request.outcome.cancelled_seconds <= request.outcome.compute_seconds + kRounding,
          "no more is wasted than computed");
  if (status.ok()) {
    ++counts_.answered;
    CheckAnswer(call, request);
    if (!call.work->generates() && Chance(scenario_.shadowed)) AddShadow(call);
  } else {
    ++counts_.failed;
    CheckError(call, status);
  }
  call.ended = now_;
  call.request->gauges = {};
  call.request = nullptr;
  const auto at = std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return &c == &call; });
  ended_.splice(ended_.end(), calls_, at);
}

void Simulation::CheckAnswer(const Call& call, const Request& request) {
  Require(call.started, "an answer was computed");
  Require(call.alone->code == absl::StatusCode::kOk, "a request that fails alone fails among others");
  if (call.work->generates()) {
    return Require(call.finished && call.tokens == call.alone->tokens.size(), "an answered generation is whole");
  }
  Require(call.deadline > now_ && call.cancelled > now_, "nobody is answered who does not wait any more");
  Require(request.outcome.batch_inputs >= call.work->inputs.size(), "a batch has the request's inputs");
  const bool alone = scenario_.options.queue.max_batch == 1;
  Require(!alone || request.outcome.batch_inputs == call.work->inputs.size(), "no batch is larger than its limit");
  const Forecast& forecast = request.forecast;
  const uint32_t asked = request.work.inputs.front().samples;
  const bool fewer_edges = forecast.cap > 0.0, degraded = forecast.samples < asked || fewer_edges;
  Require(!degraded || call.consents, "nobody gets fewer samples or edges who has not agreed");
  Require(forecast.samples >= 1 && forecast.samples <= asked, "nobody gets more samples than asked for, or none");
  Require(degraded == (forecast.reason != DegradedBy::kNothing), "an answer says that it was degraded, and why");
  Require(!fewer_edges || forecast.samples == 1, "samples give way before edges");
  if (degraded) ++counts_.degraded;
  if (fewer_edges) ++counts_.fewer_edges;
  CheckCap(call, request);
  const bool by_density = !fewer_edges || forecast.caps.by_density;
  CheckResults(request, catalogue_.AnswerOf(*call.work, call.version, {forecast.samples, forecast.cap, by_density}));
}

void Simulation::CheckCap(const Call& call, const Request& request) {
  const Model& model = catalogue_.ModelOf(call.work->model);
  for (size_t i = 0; i < request.work.inputs.size(); ++i) {
    const uint64_t asked = call.work->inputs[i].max_edges, given = RunOf(request, i).max_edges;
    Require(given == asked || (request.forecast.cap > 0.0 && given < asked), "a lower cap is told, and none is higher");
    Require(given == asked || given >= model.LeastEdges(request.work.inputs[i]),
            "no cap is below what is never dropped");
    Require(request.outcome.results[i].max_sample_edges <= given, "no answer costs more edges than its cap");
  }
}

void Simulation::CheckResults(const Request& request, const LoneAnswer& alone) {
  Require(request.outcome.results.size() == alone.results.size(), "every input has a result");
  for (size_t i = 0; i < request.outcome.results.size() && violation_.empty(); ++i) {
    Require(testing::SameBytes(request.outcome.results[i], alone.results[i]),
            "an answer has the bytes of asking, alone, for what it has");
  }
}

void Simulation::OnShadowEnd(const LoneAnswer& alone, const Request& request, const absl::Status& status) {
  Require(--background_ >= 0, "one status for every shadow");
  changed_ = true;
  if (status.ok()) {
    ++counts_.shadows;
    return CheckResults(request, alone);
  }
  if (absl::IsDeadlineExceeded(status))
    return Require(request.ticket.deadline <= now_, "a shadow that is late is late");
  if (absl::IsUnavailable(status)) return Require(closed_, "only a closed queue ends shadows");
  if (status.code() == alone.code) return;
  Require(++blamed_on_device_ <= device_.failures(), "a fault of the device fails one request at most");
}

// What the call takes if it starts now: where others of its level wait or have just ended, as much longer than was
// predicted when it came as the scheduler may allow for.
double Simulation::LikelySeconds(const Call& call) const {
  const auto beside = [&](const Call& other) {
    return &other != &call && other.level == call.level && !other.work->generates() && !other.started;
  };
  const bool crowded = std::any_of(calls_.begin(), calls_.end(), beside) ||
                       std::any_of(ended_.begin(), ended_.end(),
                                   [&](const Call& other) { return other.ended == now_ && beside(other); });
  if (!crowded || call.work->generates()) return call.predicted;
  const Request& request = *call.request;
  const double slower = request.ticket.model->costs->Predict(request.forecast.demand) / request.forecast.seconds;
  return 1.5 * std::max(slower, 1.0) * call.predicted;
}

void Simulation::CheckError(const Call& call, const absl::Status& status) {
  const bool late = call.deadline <= now_;
  const bool cancelled = call.cancelled <= now_;
  switch (status.code()) {
    case absl::StatusCode::kCancelled: {
      const double unread = Seconds(now_ - call.last_token) + longest_turn_ + Seconds(now_ - turn_began_) + kRounding;
      const bool stuck = call.unread >= scenario_.unread_limit && unread >= Seconds(scenario_.options.unread_timeout);
      return Require(cancelled || stuck, "only who cancelled or reads nothing is cancelled");
    }
    case absl::StatusCode::kDeadlineExceeded:
      return Require(late || (cancelled && call.deadline - kClocksApart <= now_) ||
                         (!call.started && LikelySeconds(call) > SlackOf(call, now_)),
                     "who is late has a deadline that has passed or cannot be met");
    case absl::StatusCode::kUnavailable:
      return Require(cancelled_all_, "only a shutdown that is out of patience ends requests");
    default:
      if (status.code() == call.alone->code) return;
      if (absl::IsResourceExhausted(status) && !call.started) {
        return Require(asking_ != nullptr && asking_->principal != call.principal,
                       "who waits makes room only for another's request");
      }
      Require(status.code() == absl::StatusCode::kInternal || status.code() == absl::StatusCode::kResourceExhausted,
              "an error of this code has no reason");
      Require(++blamed_on_device_ <= device_.failures(), "a fault of the device fails one request at most");
  }
}

// The request left the queue for the device.
void Simulation::NoteStart(Call& call) {
  if (call.started) return;
  call.started = changed_ = true;
  const Request& request = *call.request;
  const double waited = request.outcome.queue_seconds;
  const Time start = call.pushed + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(waited));
  Say(absl::StrCat(call.number, " started after ", waited, " s, in a batch of ", request.outcome.batch_inputs));
  Require(call.cancelled > start, "nothing that is cancelled is started");
  Require(call.deadline > start, "nothing that is late is started");
  const double slack = SlackOf(call, start);
  Require(call.predicted <= slack + kRounding || waited <= call.predicted + kRounding,
          "nothing is started after a wait that cannot end in time");
  if (!call.work->generates()) NoteOvertaken(call);
}

// Principals of a level share it: those that come later and go first take no more than as many seconds each as the work
// of one's own that one waits for, and has just had, up to what predictions and slowness can be wrong by.
void Simulation::NoteOvertaken(const Call& started) {
  constexpr double kWrong = 6.0;
  for (Call& call : calls_) {
    const bool waits = call.request != nullptr && !call.started && !call.work->generates();
    if (!waits || call.level != started.level || call.principal == started.principal) continue;
    if (started.number <= call.number || call.predicted == 0.0) continue;
    call.overtaken += started.predicted;
    const double others = static_cast<double>(scenario_.principals - 1);
    Require(call.overtaken <= kWrong * others * call.before, absl::StrCat(call.number, " is not starved by others"));
  }
}

void Simulation::BeforeTurn() {
  turn_began_ = now_;
  newest_ = counts_.arrivals;
  changed_ = false;
  cancelled_before_ = cancelled_all_;
}

void Simulation::AfterTurn(const Turn& turn) {
  for (Call& call : calls_) {
    if (!Waits(*call.request)) NoteStart(call);
    Require(call.cancelled > turn_began_, "who cancels is ended before the next step");
    Require(call.deadline > turn_began_, "who is late is ended before the next step");
    Require(!cancelled_before_, "a shutdown that is out of patience ends all");
  }
  CheckLimits();
  CheckWorkIsDone(turn);
  CheckWorkIsForSomeone(turn);
  CheckShares(turn);
}

void Simulation::CheckLimits() {
  const ServerOptions& options = scenario_.options;
  struct Line {
    size_t requests = 0;
    uint64_t cost = 0;
  } lines[2];
  size_t generations = 0;
  for (const Call& call : calls_) {
    const Request& request = *call.request;
    if (Waits(request)) {
      Line& line = lines[call.work->generates()];
      ++line.requests;
      line.cost += request.work.cost;
    } else if (call.work->generates() && !call.ever_unread) {
      ++generations;
    }
  }
  Require(queue_->size() == lines[0].requests + lines[1].requests, "who is neither ended nor started waits");
  for (const Line& line : lines) {
    Require(line.requests <= options.queue.max_requests, "no line is longer than its limit");
    Require(line.requests <= 1 || line.cost <= options.queue.max_tokens, "no line costs more than its limit");
  }
  Require(generations <= options.max_generations, "no more generations run than may");
  Require(queue_->cache_bytes() <= options.limits.max_cache_bytes, "keys and values have the memory that they may");
}

void Simulation::CheckWorkIsDone(const Turn& turn) {
  if (turn.kind != Turn::kNothing || changed_) return;
  bool runs = false, waits = false;
  for (const Call& call : calls_) {
    if (call.number > newest_) continue;
    Require(call.work->generates(), "the device does not rest while a request waits");
    Require(!call.started || call.ever_unread, "the device does not rest while a generation can go on");
    runs |= call.started;
    waits |= !call.started;
  }
  Require(runs || !waits, "the device does not rest while a generation waits");
}

// A step that took time had a request that was not ended before it.
void Simulation::CheckWorkIsForSomeone(const Turn& turn) {
  if (turn.kind == Turn::kNothing || now_ == turn_began_) return;
  const auto stepped = [&](const Call& call) {
    return call.started && call.level == turn.level && call.work->generates() == (turn.kind == Turn::kGeneration);
  };
  const auto until_now = [&](const Call& call) { return stepped(call) && call.ended > turn_began_; };
  Require(std::any_of(calls_.begin(), calls_.end(), stepped) || std::any_of(ended_.begin(), ended_.end(), until_now),
          "no step is for nobody");
}

// Levels that both have work get times in the ratio of their weights, but for a turn each at both ends.
void Simulation::CheckShares(const Turn& turn) {
  if (turn.kind == Turn::kNothing) return;
  const double seconds = Seconds(now_ - turn_began_);
  served_[turn.level] += seconds / Scheduler::kLevelWeights[turn.level];
  longest_turn_ = std::max(longest_turn_, seconds);
  PerLevel<bool> works = {};
  works[turn.level] = true;
  for (const Call& call : calls_) works[call.level] |= !call.work->generates() && call.number <= newest_;
  for (size_t a = 0; a < kPriorityLevels; ++a) {
    for (size_t b = a + 1; b < kPriorityLevels; ++b) {
      std::optional<double>& before = lead_[a][b];
      const double lead = served_[a] - served_[b];
      if (!works[a] || !works[b]) before.reset();
      if (!works[a] || !works[b]) continue;
      if (!before) before = lead;
      const double turns =
          2.0 * longest_turn_ * (1.0 / Scheduler::kLevelWeights[a] + 1.0 / Scheduler::kLevelWeights[b]);
      Require(std::abs(lead - *before) <= turns + kRounding, "levels share the device by their weights");
    }
  }
}

void Simulation::CheckEnd() {
  if (!violation_.empty()) return;
  loading_.clear();
  Require(calls_.empty(), "who was accepted is ended");
  Require(background_ == 0, "a shadow ends with the queue");
  Require(queue_->size() == 0, "a queue is empty at its end");
  engine_.reset();
  queue_.reset();
  models_ = {};
  Require(requests_alive_ == 0, "no request outlives the engine");
  Require(device_.live() == 0, "the memory of models and work is freed");
  std::istringstream page(metrics_.Render());
  for (std::string line; std::getline(page, line);) {
    for (const char* gauge : {"requests_in_flight", "queue_requests", "queue_tokens", "generations_running"}) {
      if (line.rfind(absl::StrCat("edgewise_", gauge, "{"), 0) != 0) continue;
      Require(line.ends_with(" 0"), "gauges are zero at the end: " + line);
    }
  }
}

}  // namespace edgewise::server
