#include "server/schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/base/status_details.h"
#include "server/models/repository.h"
#include "server/request/call.h"
#include "server/request/cost_model.h"
#include "server/schedule/degrade.h"

namespace edgewise::server {
namespace {

constexpr double kShorter = 0.25;  // of what is left of a pass: a request that starts beside it
// Factors of a prediction. A request that would be late at kSure times its prediction is refused as hopeless; kMargin
// is added where it has to wait.
constexpr double kSure = 0.7, kMargin = 1.15;
// Factors of a prediction. A request that waits is looked at closely once its deadline is nearer than kClose times its
// prediction; kMostCaution is the most that is added out of caution.
constexpr double kClose = 4.0, kMostCaution = 1.5;
// The part of the time until a deadline that earlier requests may take where they could give something up instead.
constexpr double kInTime = 0.75;
constexpr double kLeastDelay = 0.05;                // seconds until a refused client comes again, at least
constexpr std::chrono::milliseconds kLookAgain{1};  // for requests that have ended, where a line is full

// An upper bound, nearly always right, on the seconds of this request now: the machine may have become slower since it
// was predicted.
double CautiousSeconds(const Request& request) {
  const CostModel& costs = *request.ticket.model->costs;
  const double slower = costs.Predict(request.forecast.demand) / request.forecast.seconds;
  return LeastSeconds(request) * std::max(slower, 1.0) * std::min(costs.Spread(), kMostCaution);
}

// After waiting for as long as it takes alone: what it would take at least, where that is longer than its deadline
// allows; else 0. `crowded`: others wait, who could be late for what is computed for nobody.
double TooLong(const Request& request, bool crowded, Time now) {
  const double seconds = LeastSeconds(request), slack = SlackOf(request.ticket, now);
  if (request.work.generation || Seconds(now - request.outcome.queued) <= seconds || slack > kClose * seconds)
    return 0.0;
  const double likely = crowded ? CautiousSeconds(request) : seconds;
  return likely > slack ? likely : 0.0;
}

std::string Show(double seconds) {
  return absl::FormatDuration(absl::Microseconds(static_cast<int64_t>(seconds * 1e6)));
}

// The deadline that would do, as the client's protocol has it.
const char* LaterDeadline(const Ticket& ticket) {
  const bool http = ticket.call != nullptr && ticket.call->http;
  if (ticket.deadline == Time::max()) return http ? "X-Request-Timeout-Ms" : "a gRPC deadline";
  return http ? "a larger X-Request-Timeout-Ms" : "a later gRPC deadline";
}

absl::Status Hopeless(const Ticket& ticket, double seconds, Time now) {
  return absl::DeadlineExceededError(
      absl::StrCat("the request takes about ", Show(seconds), " on an idle server, and its deadline is in ",
                   Show(SlackOf(ticket, now)), "; send it with ", LaterDeadline(ticket)));
}

const char* KindOf(bool generates) { return generates ? "generations" : "requests"; }

// When a refused client shall come again: after the work that goes first. From a second on these are whole seconds,
// which are all that Retry-After can say, so that it, RetryInfo and the text agree.
double DelayOf(double before) {
  return before > 1.0 ? std::ceil(before) : std::max(kLeastDelay, std::ceil(before * 1e3) / 1e3);
}

absl::Status TryAgain(const std::string& why, double before, Rejection reason) {
  absl::Status status = absl::ResourceExhaustedError(why);
  SetRetryDelay(status, DelayOf(before));
  return WithRejection(std::move(status), reason);
}

absl::Status QueueFull(const std::string& why, double before) {
  return TryAgain(absl::StrCat("the queue is full: ", why, "; try again in ", Show(DelayOf(before))), before,
                  Rejection::kQueueFull);
}

// There is room in the queue, but what goes first takes too long. `own`: the time of the request itself, in words.
absl::Status Late(const Ticket& ticket, bool generates, double before, const std::string& own,
                  const std::string& limit) {
  return TryAgain(
      absl::StrCat("the request would be late: ", KindOf(generates), " that go first take about ",
                   Show(DelayOf(before)), own, ", and ", limit, "; try again then, or with ", LaterDeadline(ticket)),
      before, Rejection::kDeadline);
}

// Keeps this fraction of what it may give up.
void ScaleDown(Request& request, double fraction, Time now) {
  if (fraction >= 1.0) return;
  const double kept = LeastSeconds(request) + fraction * SpareSeconds(request, now);
  Lower(request, ChoiceWithin(request, kept, kept), DegradedBy::kLoad);
}

// The work of a principal that ends before `end` on the clock of its level.
double SecondsUntil(double end, std::span<const RunningPass> running, uint32_t level, const std::string& principal,
                    const Account& account) {
  const double left = end - account.served;
  double seconds = 0.0;
  for (const RunningPass& pass : running) {
    const double least = pass.progress.remaining - pass.progress.spare;
    const bool first = pass.level == level && pass.principal == principal && seconds + least <= left;
    if (first) seconds += least;
  }
  if (seconds + account.seconds <= left) return seconds + account.seconds;
  for (const RequestPtr& waiting : account.waiting) {
    if (seconds + LeastSeconds(*waiting) > left) break;
    seconds += LeastSeconds(*waiting);
  }
  return seconds;
}

double SecondsOf(const FairQueue& line, std::span<const RunningPass> running, uint32_t level) {
  double seconds = 0.0;
  for (const auto& [principal, account] : line.accounts(level)) seconds += account.seconds;
  for (const RunningPass& pass : running)
    seconds += pass.level == level ? pass.progress.remaining - pass.progress.spare : 0.0;
  return seconds;
}

}  // namespace

absl::Status Scheduler::Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended) {
  RETURN_IF_ERROR(CancelledOrExpired(*request, now));
  const Entrant entrant = {request->ticket, request->forecast.seconds, LeastSeconds(*request), request->work.cost,
                           request->work.generation.has_value()};
  if (!idle()) {
    double before = 0.0;
    RETURN_IF_ERROR(Check(entrant, now, before, ended));
    RETURN_IF_ERROR(MakeRoom(entrant, before, ended));
  }
  request->outcome.queued = now;
  QueueOf(entrant.generates).Push(std::move(request));
  return absl::OkStatus();
}

absl::Status Scheduler::Check(const Ticket& ticket, double seconds, Time now, std::vector<EndedRequest>& ended) {
  double before = 0.0;
  return idle() ? absl::OkStatus() : Check({ticket, seconds, seconds}, now, before, ended);
}

absl::Status Scheduler::Check(const Entrant& entrant, Time now, double& before, std::vector<EndedRequest>& ended) {
  EndLeftPasses(now);
  const auto has_ended = [](const RunningPass& pass) { return pass.progress.remaining <= 0.0; };
  // Then it may try: a wrong prediction is corrected so.
  const bool idle = predicts_.size() == 0 && std::all_of(running_.begin(), running_.end(), has_ended);
  const bool lasts = !entrant.generates && kSure * entrant.least > SlackOf(entrant.ticket, now);
  if (!idle && lasts) return Hopeless(entrant.ticket, entrant.least, now);
  before = SecondsBefore(entrant);
  absl::Status refused = CheckShare(entrant, before, now);
  if (refused.ok() || now - looked_ < kLookAgain) return refused;
  ended = TakeEnded(now);  // they make room
  if (ended.empty()) return refused;
  before = SecondsBefore(entrant);
  return CheckShare(entrant, before, now);
}

void Scheduler::EndLeftPasses(Time now) {
  for (RunningPass& pass : running_) {
    Progress& progress = pass.progress;
    if (progress.ends <= now || pass.stopping.stop_requested()) progress.remaining = progress.spare = 0.0;
  }
}

// Without what others make room for.
absl::Status Scheduler::CheckShare(const Entrant& entrant, double before, Time now) const {
  const FairQueue& line = QueueOf(entrant.generates);
  const FairQueue::Usage own = line.UsageOf(entrant.ticket.principal.name);
  const bool alone = own.requests == line.size();  // nobody else waits
  const size_t max_requests = alone ? limits_.max_requests : limits_.max_requests / 2;
  const uint64_t max_cost = alone ? limits_.max_tokens : limits_.max_tokens / 2;
  const char* const whose = alone ? " wait" : " of this client wait";
  const char* const limit = alone ? "; the limit is " : "; the limit while others wait is ";
  if (own.requests > 0 && own.requests >= max_requests) {
    return QueueFull(absl::StrCat(own.requests, " ", KindOf(entrant.generates), whose, limit, max_requests), before);
  }
  if (own.requests > 0 && own.cost + entrant.cost > max_cost) {
    return QueueFull(
        absl::StrCat(own.cost, " positions and edges", whose, " and this request has ", entrant.cost, limit, max_cost),
        before);
  }
  return CheckTime(entrant, before, now);
}

absl::Status Scheduler::MakeRoom(const Entrant& entrant, double before, std::vector<EndedRequest>& ended) {
  FairQueue& line = QueueOf(entrant.generates);
  const bool full = line.size() >= limits_.max_requests || line.cost() + entrant.cost > limits_.max_tokens;
  if (line.size() == 0 || !full) return absl::OkStatus();
  std::vector<RequestPtr> displaced =
      line.MakeRoom(entrant.ticket.principal.name, entrant.cost, limits_.max_requests, limits_.max_tokens);
  if (displaced.empty()) {
    return QueueFull(
        absl::StrCat(line.size(), " ", KindOf(entrant.generates), " with ", line.cost(),
                     " positions and edges wait; the limits are ", limits_.max_requests, " and ", limits_.max_tokens),
        before);
  }
  for (RequestPtr& newest : displaced) {
    ended.push_back({std::move(newest), QueueFull("a client with fewer requests came", before)});
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckTime(const Entrant& entrant, double before, Time now) const {
  if (before <= 0.0) return absl::OkStatus();
  const Ticket& ticket = entrant.ticket;
  const double slack = SlackOf(ticket, now);
  if ((entrant.generates ? before : kMargin * (before + entrant.least)) > slack) {
    // The client of a generation reads what there is at its deadline.
    const std::string own = entrant.generates ? "" : absl::StrCat(" and this one about ", Show(entrant.least));
    return Late(ticket, entrant.generates, before, own, absl::StrCat("its deadline is in ", Show(slack)));
  }
  const double most = Seconds(limits_.max_delay);
  if (!entrant.generates && ticket.deadline == Time::max() && before > most) {
    const std::string limit = absl::StrCat("without a deadline the limit is ", Show(most), " (--max_queue_delay)");
    return Late(ticket, entrant.generates, before, "", limit);
  }
  return absl::OkStatus();
}

// The work that goes before the request: that of its own principal, as far as it is not much longer; of others on its
// level, what ends before it does when each gets its share; of the other levels, what they get meanwhile.
double Scheduler::SecondsBefore(const Entrant& entrant) const {
  const uint32_t own = entrant.ticket.priority - 1;
  const std::string& principal = entrant.ticket.principal.name;
  const double takes = entrant.seconds;
  const FairQueue& line = QueueOf(entrant.generates);
  const std::span<const RunningPass> running = entrant.generates ? std::span<const RunningPass>() : running_;
  const FairQueue::Accounts& accounts = line.accounts(own);
  const auto mine = accounts.find(principal);
  double before = 0.0;
  const auto add = [&](double work, double least) { before += kShorter * work <= takes ? least : 0.0; };
  if (mine != accounts.end() && kShorter * mine->second.longest <= takes) before += mine->second.seconds;
  if (mine != accounts.end() && kShorter * mine->second.longest > takes) {
    for (const RequestPtr& waiting : mine->second.waiting) add(waiting->forecast.seconds, LeastSeconds(*waiting));
  }
  for (const RunningPass& pass : running) {
    if (pass.level == own && pass.principal == principal)
      add(pass.progress.remaining, pass.progress.remaining - pass.progress.spare);
  }
  const double end = (mine != accounts.end() ? mine->second.served : line.clock(own)) + before + takes;
  for (auto other = accounts.begin(); other != accounts.end(); ++other) {
    if (other != mine) before += SecondsUntil(end, running, own, other->first, other->second);
  }
  const double until = before + takes;
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    if (level != own)
      before += std::min(SecondsOf(line, running, level), until * kLevelWeights[level] / kLevelWeights[own]);
  }
  return before;
}

double Scheduler::KeptFraction(uint32_t level, Time now) const {
  std::vector<const Request*> line;
  for (const auto& [principal, account] : predicts_.accounts(level)) {
    for (const RequestPtr& waiting : account.waiting) line.push_back(waiting.get());
  }
  std::stable_sort(line.begin(), line.end(),
                   [](const Request* a, const Request* b) { return a->outcome.queued < b->outcome.queued; });
  double before = 0.0, spare = 0.0;  // of those before: what they take at least, and what they may give up
  for (uint32_t above = 0; above < level; ++above) before += SecondsOf(predicts_, running_, above);
  double fraction = 1.0;
  for (const Request* waiting : line) {
    double least = before, more = spare;
    for (const RunningPass& pass : running_) {
      if (pass.level != level || kShorter * pass.progress.remaining > waiting->forecast.seconds)
        continue;  // it goes first
      least += pass.progress.remaining - pass.progress.spare;
      more += pass.progress.spare;
    }
    before += LeastSeconds(*waiting);
    spare += SpareSeconds(*waiting, now);
    const bool endless = waiting->ticket.deadline == Time::max();
    const double left =
        endless ? Seconds(limits_.max_delay - (now - waiting->outcome.queued)) : SlackOf(waiting->ticket, now);
    if (!endless) least += LeastSeconds(*waiting);
    if (least > left || more <= 0.0) continue;  // nothing would help it; nothing can be given up
    fraction = std::min(fraction, (kInTime * left - least) / more);
  }
  return std::max(0.0, fraction);
}

std::vector<EndedRequest> Scheduler::TakeEnded(Time now) {
  std::vector<EndedRequest> ended;
  PerLevel<size_t> waiting = {};
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    for (const auto& [principal, account] : predicts_.accounts(level)) waiting[level] += account.waiting.size();
  }
  const auto reason = [now, &waiting](const Request& request) {
    size_t& mates = waiting[request.ticket.priority - 1];
    absl::Status status = CancelledOrExpired(request, now);
    const double seconds = status.ok() ? TooLong(request, mates > 1, now) : 0.0;
    if (seconds > 0.0) status = Hopeless(request.ticket, seconds, now);
    if (!status.ok() && !request.work.generation) --mates;
    return status;
  };
  predicts_.TakeIf(reason, ended);
  generations_.TakeIf(reason, ended);
  looked_ = now;
  return ended;
}

std::vector<RequestPtr> Scheduler::TakeAll() {
  std::vector<RequestPtr> all = predicts_.TakeAll();
  for (RequestPtr& request : generations_.TakeAll()) all.push_back(std::move(request));
  return all;
}

void Scheduler::CloseIdle() {
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    const auto runs = [&](const std::string& principal) {
      return std::any_of(running_.begin(), running_.end(),
                         [&](const RunningPass& pass) { return pass.level == level && pass.principal == principal; });
    };
    predicts_.CloseIdle(level, runs);
    generations_.CloseIdle(level, [](const std::string&) { return false; });
  }
}

RunningPass& Scheduler::PassOf(uint64_t number) {
  return *std::find_if(running_.begin(), running_.end(),
                       [number](const RunningPass& pass) { return pass.number == number; });
}

uint64_t Scheduler::Started(RunningPass pass) {
  pass.number = ++started_;
  predicts_.Open(pass.level, pass.principal);
  running_.push_back(std::move(pass));
  return started_;
}

void Scheduler::Stepped(uint64_t pass, const Progress& progress, double seconds) {
  RunningPass& stepped = PassOf(pass);
  stepped.progress = progress;
  if (seconds <= 0.0) return;
  served_[stepped.level] += seconds / kLevelWeights[stepped.level];
  generation_lead_[stepped.level] -= seconds;
  predicts_.Charge(stepped.level, stepped.principal, seconds, stepped.own);
}

void Scheduler::Ended(uint64_t pass) {
  std::erase_if(running_, [pass](const RunningPass& running) { return running.number == pass; });
  CloseIdle();
}

void Scheduler::Generated(uint32_t level, double seconds) {
  served_[level] += seconds / kLevelWeights[level];
  generation_lead_[level] += seconds;
}

// Apart from others: a step of its latest pass, or the start of a request that goes before its passes.
Scheduler::Candidate Scheduler::CandidateOf(uint32_t level, const std::string& principal,
                                            const Account& account) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Candidate next{.turn = {.level = level}, .principal = principal};
  double shortest = kNone;
  size_t running = 0;  // of all principals
  for (const RunningPass& pass : running_) {
    if (pass.level != level) continue;
    ++running;
    if (pass.principal != principal) continue;
    shortest = std::min(shortest, pass.progress.remaining);
    next.turn.kind = Turn::kStep;
    next.turn.pass = pass.number;
    next.end = account.served + pass.progress.remaining;
  }
  if (running >= kMostPasses) return next;
  for (size_t i = 0; i < account.waiting.size(); ++i) {
    const double seconds = account.waiting[i]->forecast.seconds;
    const bool starts = running == 0 || (seconds > 0.0 && (shortest == kNone || seconds <= kShorter * shortest));
    if (starts) {
      next.turn.kind = Turn::kStart;
      next.index = i;
      next.end = account.served + seconds;
      next.since = account.waiting[i]->outcome.queued;
    }
    if (starts || shortest == kNone) break;
  }
  return next;
}

Turn Scheduler::TurnOf(uint32_t level, bool generation, Time now) {
  Candidate first{.turn = {.level = level}};
  for (const auto& [principal, account] : predicts_.accounts(level)) {
    Candidate next = CandidateOf(level, principal, account);
    if (next.turn.kind == Turn::kNothing) continue;
    if (first.turn.kind == Turn::kNothing || next.Before(first)) first = std::move(next);
  }
  Turn turn = first.turn;
  candidate_[level] = std::move(first);
  for (const RunningPass& pass : running_) {
    if (pass.level != level || now - pass.progress.stepped < kPatience) continue;
    turn.kind = Turn::kStep;
    turn.pass = pass.number;
    break;
  }
  if (!generation || turn.kind == Turn::kNothing) generation_lead_[level] = 0.0;  // nobody to share with
  if (generation && (turn.kind == Turn::kNothing || generation_lead_[level] < 0.0)) turn.kind = Turn::kGeneration;
  return turn;
}

Turn Scheduler::Next(const PerLevel<bool>& generations, Time now) {
  PerLevel<Turn> turns;
  double least = std::numeric_limits<double>::infinity();  // served, of the levels that still have work
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    turns[level] = TurnOf(level, generations[level], now);
    if (turns[level].kind != Turn::kNothing && active_[level]) least = std::min(least, served_[level]);
  }
  if (std::isinf(least)) served_ = {}, least = 0.0;  // no level that had work has any left: nobody owes anything
  Turn next;
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    const bool works = turns[level].kind != Turn::kNothing;
    // A level that was idle has saved nothing up.
    if (works && !active_[level]) served_[level] = std::max(served_[level], least);
    active_[level] = works;
    if (works && (next.kind == Turn::kNothing || served_[level] < served_[next.level])) next = turns[level];
  }
  if (next.kind == Turn::kStep && PassOf(next.pass).progress.spare > 0.0) next.kept = KeptFraction(next.level, now);
  return next;
}

std::vector<RequestPtr> Scheduler::TakeBatch(Turn& turn, Time now) {
  std::vector<RequestPtr> batch;
  const uint32_t level = turn.level;
  const Candidate& candidate = candidate_[level];
  const Account& account = predicts_.accounts(level).find(candidate.principal)->second;
  const double kept = account.waiting[candidate.index]->work.may_degrade ? KeptFraction(level, now) : 1.0;
  const auto planned = [&](const Request& request) {
    return request.forecast.seconds - (1.0 - kept) * SpareSeconds(request, now);
  };
  batch.push_back(predicts_.Take(level, candidate.principal, candidate.index));
  ScaleDown(*batch[0], kept, now);
  const Request& first = *batch[0];
  double seconds = first.forecast.seconds, most = std::min(kBatchSeconds, SlackOf(first.ticket, now));
  std::map<std::string, size_t> looked_at;  // by principal: those before do not fit
  looked_at[candidate.principal] = candidate.index;
  while (seconds > 0.0 && batch.size() < limits_.max_batch) {
    Candidate next{.end = std::numeric_limits<double>::infinity()};
    for (const auto& [principal, account] : predicts_.accounts(level)) {
      size_t& index = looked_at[principal];
      for (; index < account.waiting.size(); ++index) {
        const Request& mate = *account.waiting[index];
        if (mate.ticket.model == first.ticket.model &&
            seconds + planned(mate) <= std::min(most, SlackOf(mate.ticket, now)))
          break;
      }
      if (index == account.waiting.size()) continue;
      const Request& mate = *account.waiting[index];
      Candidate own{.principal = principal,
                    .index = index,
                    .end = account.served + mate.forecast.seconds,
                    .since = mate.outcome.queued};
      if (own.Before(next)) next = std::move(own);
    }
    if (!std::isfinite(next.end)) break;
    RequestPtr mate = predicts_.Take(level, next.principal, next.index);
    ScaleDown(*mate, kept, now);
    predicts_.Open(level, next.principal).served += mate->forecast.seconds;
    most = std::min(most, SlackOf(mate->ticket, now));
    seconds += mate->forecast.seconds;
    batch.push_back(std::move(mate));
  }
  const double own = seconds > 0.0 ? first.forecast.seconds / seconds : 1.0;
  Time ends = Time::min();
  double spare = seconds;
  for (const RequestPtr& request : batch) {
    ends = std::max(ends, request->ticket.deadline);
    spare = request->work.may_degrade ? spare - request->forecast.one_seconds : 0.0;
  }
  turn.pass = Started({.level = level,
                       .principal = first.ticket.principal.name,
                       .own = own,
                       .stopping = batch.size() == 1 ? first.ticket.stopping : std::stop_token(),
                       .progress = {seconds, std::max(0.0, spare), now, ends}});
  return batch;
}

std::optional<Scheduler::Candidate> Scheduler::FirstGeneration(const GenerationRoom& room) const {
  if (room.generations == 0) return std::nullopt;
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    Candidate first{.turn = {.level = level}, .end = std::numeric_limits<double>::infinity()};
    uint64_t bytes = 0;
    for (const auto& [principal, account] : generations_.accounts(level)) {
      if (account.waiting.empty()) continue;
      const Request& request = *account.waiting.front();
      Candidate next{.turn = {.level = level},
                     .principal = principal,
                     .end = account.served + request.forecast.seconds,
                     .since = request.outcome.queued};
      if (!next.Before(first)) continue;
      first = std::move(next);
      bytes = request.work.generation->cache_bytes.ahead;
    }
    if (std::isfinite(first.end)) return bytes <= room.cache_bytes ? std::optional(first) : std::nullopt;
  }
  return std::nullopt;
}

RequestPtr Scheduler::NextGeneration(const GenerationRoom& room) {
  if (generations_.size() == 0) return nullptr;
  const std::optional<Candidate> first = FirstGeneration(room);
  if (!first) return nullptr;
  RequestPtr request = generations_.Take(first->turn.level, first->principal, 0);
  generations_.Charge(first->turn.level, first->principal, request->forecast.seconds);
  return request;
}

}  // namespace edgewise::server
