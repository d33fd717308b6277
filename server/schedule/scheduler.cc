#include "server/schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/schedule/degrade.h"
#include "server/status_details.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr double kShorter = 0.25;  // of what is left of a pass: a request that starts beside it
// Of a prediction: a request is refused as hopeless where even that is too long; where it has to wait, this is added.
constexpr double kSure = 0.7, kMargin = 1.15;
// Of the time until a deadline: what those before it may take where they could give samples up instead.
constexpr double kInTime = 0.75;

// After waiting for as long as it takes alone.
bool IsHopeless(const Request& request, Time now) {
  const double seconds = LeastSeconds(request);
  return Seconds(now - request.queued) > seconds && seconds > SlackOf(request, now);
}

std::string Show(double seconds) {
  return absl::FormatDuration(absl::Microseconds(static_cast<int64_t>(seconds * 1e6)));
}

absl::Status Hopeless(const Request& request, Time now) {
  return absl::DeadlineExceededError(absl::StrCat("the request takes about ", Show(LeastSeconds(request)),
                                                  " on an idle server; its deadline is in ",
                                                  Show(SlackOf(request, now))));
}

// Keeps this share of what it may give up.
void Lower(Request& request, double share, Time now) {
  if (share >= 1.0) return;
  const double kept = LeastSeconds(request) + share * SpareSeconds(request, now);
  LowerSamples(request, SamplesWithin(request, kept), DegradedBy::kLoad);
}

}  // namespace

size_t Scheduler::Line::size() const {
  size_t requests = 0;
  for (const std::deque<RequestPtr>& level : levels) requests += level.size();
  return requests;
}

RequestPtr Scheduler::Line::Take(size_t level, size_t index) {
  const auto at = levels[level].begin() + static_cast<int64_t>(index);
  RequestPtr request = std::move(*at);
  levels[level].erase(at);
  cost -= request->cost;
  return request;
}

void Scheduler::Line::TakeEnded(Time now, std::vector<EndedRequest>& ended) {
  for (std::deque<RequestPtr>& level : levels) {
    for (RequestPtr& request : level) {
      absl::Status reason = CancelledOrExpired(*request, now);
      if (reason.ok() && IsHopeless(*request, now)) reason = Hopeless(*request, now);
      if (reason.ok()) continue;
      cost -= request->cost;
      ended.push_back({std::move(request), std::move(reason)});
    }
    std::erase(level, nullptr);
  }
}

absl::Status Scheduler::Add(RequestPtr& request, Time now, std::vector<EndedRequest>& ended) {
  RETURN_IF_ERROR(CancelledOrExpired(*request, now));
  const bool idle = predicts_.size() == 0 && running_.empty();  // it may try: a wrong prediction is corrected so
  if (!idle && kSure * LeastSeconds(*request) > SlackOf(*request, now)) return Hopeless(*request, now);
  Line& line = request->generation ? generations_ : predicts_;
  absl::Status room = CheckRoom(line, *request, now);
  if (!room.ok()) {
    ended = TakeEnded(now);  // they make room
    if (!ended.empty()) room = CheckRoom(line, *request, now);
  }
  RETURN_IF_ERROR(room);
  line.cost += request->cost;
  request->queued = now;
  line.levels[request->priority - 1].push_back(std::move(request));
  return absl::OkStatus();
}

absl::Status Scheduler::CheckRoom(const Line& line, const Request& request, Time now) const {
  const size_t waiting = line.size();
  const double before = SecondsBefore(request), slack = SlackOf(request, now);
  std::string why;
  if (waiting > 0 && waiting >= limits_.max_requests) {
    why = absl::StrCat(waiting, request.generation ? " generations" : " requests", " wait; the limit is ",
                       limits_.max_requests);
  } else if (waiting > 0 && line.cost + request.cost > limits_.max_tokens) {
    why = absl::StrCat(line.cost, " positions and edges wait and this request has ", request.cost, "; the limit is ",
                       limits_.max_tokens);
  } else if (!request.generation && before > 0.0) {
    if (kMargin * (before + LeastSeconds(request)) > slack) {
      why = absl::StrCat("requests that go first take about ", Show(before), " and this one about ",
                         Show(LeastSeconds(request)), "; its deadline is in ", Show(slack));
    } else if (request.deadline == Time::max() && before > Seconds(limits_.max_delay)) {
      why = absl::StrCat("requests that go first take about ", Show(before), "; without a deadline the limit is ",
                         Show(Seconds(limits_.max_delay)), " (--max_queue_delay)");
    }
  }
  if (why.empty()) return absl::OkStatus();
  absl::Status status = absl::ResourceExhaustedError("the queue is full: " + why);
  SetRetryDelay(status, std::clamp(before, 0.05, 5.0));
  return WithRejection(std::move(status), Rejection::kQueueFull);
}

// The work that goes before the request, over the share of the device that its level and those above get.
double Scheduler::SecondsBefore(const Request& request) const {
  const size_t own = request.priority - 1;
  PerLevel<double> seconds = {};
  const auto add = [&](size_t level, double work, double least) {
    const bool first = level != own || kShorter * work <= request.predicted_seconds;
    if (first) seconds[level] += least;
  };
  for (size_t level = 0; level < kPriorityLevels; ++level) {
    for (const RequestPtr& waiting : predicts_.levels[level]) {
      add(level, waiting->predicted_seconds, LeastSeconds(*waiting));
    }
  }
  for (const RunningPass& pass : running_) add(pass.level, pass.remaining, pass.remaining - pass.spare);
  double before = 0.0, weight = 0.0, below = 0.0;
  for (size_t level = 0; level < kPriorityLevels; ++level) {
    if (level <= own) before += seconds[level];
    if (level <= own) weight += kLevelWeights[level];
    if (level > own && seconds[level] > 0.0) below += kLevelWeights[level];
  }
  return before * (weight + below) / weight;
}

double Scheduler::Share(uint32_t level, Time now) const {
  double before = 0.0, spare = 0.0;  // in all: what those before take at least, and what they may give up
  for (uint32_t above = 0; above < level; ++above) {
    for (const RequestPtr& waiting : predicts_.levels[above]) before += LeastSeconds(*waiting);
  }
  double share = 1.0;
  for (const RequestPtr& waiting : predicts_.levels[level]) {
    double before_it = before, spare_before_it = spare;
    for (const RunningPass& pass : running_) {
      if (pass.level > level || kShorter * pass.remaining > waiting->predicted_seconds) continue;  // it goes first
      before_it += pass.remaining - pass.spare;
      spare_before_it += pass.spare;
    }
    before += LeastSeconds(*waiting);
    spare += SpareSeconds(*waiting, now);
    const bool endless = waiting->deadline == Time::max();
    const double left = endless ? Seconds(limits_.max_delay - (now - waiting->queued)) : SlackOf(*waiting, now);
    const double own = endless ? 0.0 : LeastSeconds(*waiting);
    if (before_it + own > left || spare_before_it <= 0.0) continue;  // nothing would help it; nothing can be given up
    share = std::min(share, (kInTime * left - before_it - own) / spare_before_it);
  }
  return std::max(0.0, share);
}

std::vector<EndedRequest> Scheduler::TakeEnded(Time now) {
  std::vector<EndedRequest> ended;
  predicts_.TakeEnded(now, ended);
  generations_.TakeEnded(now, ended);
  return ended;
}

std::vector<RequestPtr> Scheduler::TakeAll() {
  std::vector<RequestPtr> all;
  for (Line* line : {&predicts_, &generations_}) {
    for (size_t level = 0; level < kPriorityLevels; ++level) {
      while (!line->levels[level].empty()) all.push_back(line->Take(level, 0));
    }
  }
  return all;
}

int64_t Scheduler::Candidate(uint32_t level) const {
  const std::deque<RequestPtr>& line = predicts_.levels[level];
  double shortest = std::numeric_limits<double>::infinity();
  for (const RunningPass& pass : running_) {
    if (pass.level == level) shortest = std::min(shortest, pass.remaining);
  }
  for (size_t i = 0; i < line.size(); ++i) {
    const double seconds = line[i]->predicted_seconds;
    if (shortest == std::numeric_limits<double>::infinity()) return 0;
    if (seconds > 0.0 && seconds <= kShorter * shortest) return static_cast<int64_t>(i);
  }
  return -1;
}

Turn Scheduler::TurnOf(uint32_t level, bool generation, Time now) {
  Turn turn;
  turn.level = level;
  for (size_t p = 0; p < running_.size(); ++p) {
    if (running_[p].level != level) continue;
    turn.kind = Turn::kStep;
    turn.pass = p;  // the latest
  }
  const int64_t candidate = Candidate(level);
  if (candidate >= 0) {
    turn.kind = Turn::kStart;
    candidate_[level] = static_cast<size_t>(candidate);
  }
  for (size_t p = 0; p < running_.size(); ++p) {
    if (running_[p].level != level || now - running_[p].stepped < kPatience) continue;
    turn.kind = Turn::kStep;
    turn.pass = p;
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
  Turn next;
  for (uint32_t level = 0; level < kPriorityLevels; ++level) {
    const bool works = turns[level].kind != Turn::kNothing;
    // A level that was idle has saved nothing up.
    if (works && !active_[level] && std::isfinite(least)) served_[level] = std::max(served_[level], least);
    active_[level] = works;
    if (works && (next.kind == Turn::kNothing || served_[level] < served_[next.level])) next = turns[level];
  }
  if (next.kind == Turn::kStep && running_[next.pass].spare > 0.0) next.share = Share(next.level, now);
  return next;
}

void Scheduler::Charge(const Turn& turn, double seconds) {
  served_[turn.level] += seconds / kLevelWeights[turn.level];
  generation_lead_[turn.level] += turn.kind == Turn::kGeneration ? seconds : -seconds;
}

std::vector<RequestPtr> Scheduler::TakeBatch(uint32_t level, Time now) {
  std::deque<RequestPtr>& line = predicts_.levels[level];
  std::vector<RequestPtr> batch;
  const double share = line[candidate_[level]]->consent.given ? Share(level, now) : 1.0;
  batch.push_back(predicts_.Take(level, candidate_[level]));
  Lower(*batch[0], share, now);
  double seconds = batch[0]->predicted_seconds, most = std::min(kBatchSeconds, SlackOf(*batch[0], now));
  for (size_t i = candidate_[level]; i < line.size() && seconds > 0.0;) {
    const Request& mate = *line[i];
    const double together = seconds + mate.predicted_seconds - (1.0 - share) * SpareSeconds(mate, now);
    if (mate.model != batch[0]->model || together > std::min(most, SlackOf(mate, now))) {
      ++i;
      continue;
    }
    most = std::min(most, SlackOf(mate, now));
    seconds = together;
    batch.push_back(predicts_.Take(level, i));
    Lower(*batch.back(), share, now);
  }
  running_.push_back({level, seconds, now});
  return batch;
}

bool Scheduler::HasGeneration(const GenerationRoom& room) const {
  const Request* first = FirstGeneration();
  return first != nullptr && room.generations > 0 && first->generation->cache_bytes <= room.cache_bytes;
}

RequestPtr Scheduler::NextGeneration(const GenerationRoom& room) {
  return HasGeneration(room) ? generations_.Take(FirstGeneration()->priority - 1, 0) : nullptr;
}

const Request* Scheduler::FirstGeneration() const {
  for (const std::deque<RequestPtr>& level : generations_.levels) {
    if (!level.empty()) return level.front().get();
  }
  return nullptr;
}

}  // namespace edgewise::server
