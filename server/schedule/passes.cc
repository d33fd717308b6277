#include "server/schedule/passes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/pass.h"
#include "server/base/status_details.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/request/cost_model.h"
#include "server/schedule/degrade.h"
#include "server/schedule/device_failure.h"

namespace edgewise::server {
namespace {

using Requests = std::vector<std::shared_ptr<Request>>;  // that ended may wait for their answers

constexpr double kLeastLeft = 0.02;     // of its prediction: what a pass is taken to have left when that has run out
constexpr int64_t kLeastStepRows = 64;  // fewer share too little of reading the weights

// Under consent: what a wave takes of the seconds until the deadline, and what is left for the answer of the whole
// time, beside kAnswer.
constexpr double kWaveShare = 0.125, kAnswerShare = 0.1;

std::vector<InputRun> RunsOf(const Requests& requests) {
  std::vector<InputRun> runs;
  for (const std::shared_ptr<Request>& request : requests) {
    for (size_t i = 0; i < request->work.inputs.size(); ++i) runs.push_back(RunOf(*request, i));
  }
  return runs;
}

Demand SumOf(const Requests& requests) {
  Demand demand;
  for (const std::shared_ptr<Request>& request : requests) demand += request->forecast.demand;
  return demand;
}

// The most rows of a wave, so that requests under consent can end in time; one sample of all inputs goes together.
int64_t WaveTokens(const Requests& requests, const Demand& demand, double predicted, int64_t most, Time now) {
  double tokens = 0.0, slack = std::numeric_limits<double>::infinity();
  for (const std::shared_ptr<Request>& request : requests) {
    tokens += static_cast<double>(request->work.tokens);
    if (request->work.may_degrade) slack = std::min(slack, SlackOf(request->ticket, now));
  }
  if (!std::isfinite(slack)) return most;
  const double rows = predicted > 0.0 ? demand.tokens * std::max(0.0, kWaveShare * slack) / predicted : 0.0;
  return static_cast<int64_t>(std::min(std::max(rows, tokens), static_cast<double>(most)));
}

}  // namespace

struct Passes::Running {
  struct Member {
    std::shared_ptr<Request> request;  // kept after its end: the pass refers to its inputs
    int64_t first_input = 0;
    bool ended = false;
  };

  Running(Requests requests, Pass::Options options, Finisher& to_end, uint64_t pass_number)
      : answers(to_end),
        model(*requests[0]->ticket.model),
        number(pass_number),
        background(requests[0]->ticket.background),
        pass(*model.model, RunsOf(requests), options) {
    for (std::shared_ptr<Request>& request : requests) {
      tokens += request->work.tokens;
      members.push_back({std::move(request), inputs});
      inputs += static_cast<int64_t>(members.back().request->work.inputs.size());
    }
    waited_for = members.size();
  }

  // The samples that every input of the request has.
  uint32_t SamplesDone(const Member& member) const {
    uint32_t done = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i < member.request->work.inputs.size(); ++i) {
      done = std::min(done, pass.samples_done(member.first_input + static_cast<int64_t>(i)));
    }
    return done;
  }
  // How far it is. Where all of its requests agree, they may give up the seconds that are left but one sample of each.
  Progress progress() const {
    Progress at{.stepped = stepped, .ends = Time::min()};
    bool done = true, agree = true;
    double least = 0.0;
    for (const Member& member : members) {
      if (member.ended) continue;
      const Request& request = *member.request;
      at.ends = std::max(at.ends, request.ticket.deadline);
      done &= Done(member);
      agree &= request.work.may_degrade;
      if (agree && SamplesDone(member) == 0) least += request.forecast.one_seconds;
    }
    if (!done) at.remaining = std::max(predicted - seconds, kLeastLeft * predicted);
    if (agree) at.spare = std::max(0.0, at.remaining - least);
    return at;
  }
  void Limit(Member& member, uint32_t samples, DegradedBy reason) {
    Request& request = *member.request;
    if (!request.work.may_degrade || samples >= request.forecast.samples) return;
    Lower(request, {samples}, reason);
    for (size_t i = 0; i < request.work.inputs.size(); ++i) {
      pass.Limit(member.first_input + static_cast<int64_t>(i), request.forecast.samples);
    }
    limited = true;
    whole &= pass.between_waves();  // otherwise samples that run are lost
  }
  // All inputs of the request have their results.
  bool Done(const Member& member) const {
    for (size_t i = 0; i < member.request->work.inputs.size(); ++i) {
      if (!pass.done(member.first_input + static_cast<int64_t>(i))) return false;
    }
    return true;
  }

  void End(Member& member, const absl::Status& status) {
    member.request->outcome.compute_seconds += seconds;
    member.ended = true;
    --waited_for;
    answers.End(member.request, status);
  }
  // Nobody waits for it any more.
  void Leave(Member& member, const absl::Status& reason) {
    const double share = static_cast<double>(member.request->work.tokens) / static_cast<double>(tokens);
    member.request->outcome.cancelled_seconds += seconds * share;
    whole = false;
    End(member, reason);
  }

  Finisher& answers;
  const LoadedModel& model;  // of the tickets
  std::vector<Member> members;
  size_t waited_for = 0;  // members that have not ended
  int64_t inputs = 0;
  uint64_t tokens = 0;  // valid ones, one sample
  const uint64_t number;
  const bool background;
  double predicted = 0.0;                         // seconds
  double seconds = 0.0;                           // in its start and its steps so far
  double start_seconds = 0.0;                     // of these: not yet told to the scheduler
  bool whole = true;                              // nobody left it, and all samples that ran count
  bool limited = false;                           // it runs fewer samples than predicted
  double wave_seconds = 0.0, step_seconds = 0.0;  // the last, other passes in between included
  Time wave_began;
  Demand observed;  // of the requests that were answered
  Time stepped;
  Pass pass;
};

Passes::Passes(RequestQueue& queue, Finisher& answers, Clock::duration max_step)
    : queue_(queue), finisher_(answers), max_step_seconds_(Seconds(max_step)) {}
Passes::~Passes() = default;

void Passes::Tell(const Running& running, double seconds) {
  if (!running.background) queue_.Stepped(running.number, running.progress(), seconds);
}

void Passes::Erase(const Running& running) {
  if (!running.background) queue_.Ended(running.number);
  std::erase_if(running_, [&running](const auto& each) { return each.get() == &running; });
}

std::unique_ptr<Passes::Running> Passes::Make(Requests requests, uint64_t number) const {
  const LoadedModel& model = *requests[0]->ticket.model;
  const Time now = queue_.now();
  Demand demand = SumOf(requests);
  double predicted = model.costs->Predict(demand);
  Pass::Options options;
  const double layer = predicted / model.model->config().num_hidden_layers;  // of all waves together
  if (layer > max_step_seconds_) {
    const double rows = demand.tokens * max_step_seconds_ / layer;
    options.max_wave_tokens = std::clamp(static_cast<int64_t>(rows), int64_t{1}, options.max_wave_tokens);
    options.step_rows = std::max(static_cast<int64_t>(rows), kLeastStepRows);
  }
  for (const std::shared_ptr<Request>& request : requests) LowerToDeadline(*request, options.max_wave_tokens, now);
  demand = SumOf(requests);
  predicted = model.costs->Predict(demand);
  options.max_wave_tokens = WaveTokens(requests, demand, predicted, options.max_wave_tokens, now);
  auto running = std::make_unique<Running>(std::move(requests), options, finisher_, number);
  running->predicted = predicted;
  running->stepped = running->wave_began = queue_.now();
  return running;
}

void Passes::Start(std::vector<RequestPtr> requests, uint64_t number) {
  const Time now = queue_.now();
  running_.push_back(
      Make({std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end())}, number));
  Running& running = *running_.back();
  running.seconds = running.start_seconds = Seconds(queue_.now() - now);
  std::vector<Request*> started;
  for (Running::Member& member : running.members) {
    Request& request = *started.emplace_back(member.request.get());
    request.outcome.queue_seconds = Seconds(now - request.outcome.queued);
    request.outcome.batch_inputs = static_cast<uint32_t>(running.inputs);
    request.outcome.batch_tokens = running.tokens;
  }
  if (running.background) return;
  running.model.metrics->CountBatch(started);
}

void Passes::AnswerInTime(Running& running, Time now) {
  const double next = running.pass.between_waves() ? running.wave_seconds : running.step_seconds;
  bool limited = false;
  for (Running::Member& member : running.members) {
    const Request& request = *member.request;
    if (member.ended || !request.work.may_degrade || request.ticket.deadline == Time::max()) continue;
    const double answer = Seconds(kAnswer) + kAnswerShare * Seconds(request.ticket.deadline - request.ticket.arrival);
    const uint32_t done = running.SamplesDone(member);
    if (done == 0 || SlackOf(request.ticket, now) >= next + answer) continue;
    running.Limit(member, done, DegradedBy::kDeadline);
    limited = true;
  }
  if (!limited) return;
  Tell(running, 0.0);
  EndAnswered(running);
}

void Passes::EndDue() {
  const Time now = queue_.now();
  for (size_t i = 0; i < running_.size();) {
    Running& running = *running_[i];
    if (!queue_.cancelled()) AnswerInTime(running, now);
    bool left = false;
    for (Running::Member& member : running.members) {
      if (member.ended) continue;
      const absl::Status reason = queue_.cancelled() ? ShuttingDown() : CancelledOrExpired(*member.request, now);
      if (reason.ok()) continue;
      for (size_t input = 0; input < member.request->work.inputs.size(); ++input) {
        running.pass.Cancel(member.first_input + static_cast<int64_t>(input), reason);
      }
      running.Leave(member, reason);
      left = true;
    }
    if (running.waited_for == 0) {
      Erase(running);
      continue;
    }
    if (left) Tell(running, 0.0);
    ++i;
  }
}

void Passes::Step(uint64_t number, double kept) {
  Running& running =
      **std::find_if(running_.begin(), running_.end(), [number](const auto& each) { return each->number == number; });
  for (Running::Member& member : running.members) {
    if (kept >= 1.0 || member.ended) continue;
    const uint32_t done = running.SamplesDone(member), samples = member.request->forecast.samples;
    const uint32_t more = samples - std::min(samples, std::max(done, 1u));
    running.Limit(member, samples - more + static_cast<uint32_t>(kept * more), DegradedBy::kLoad);
  }
  const Time start = queue_.now();
  const absl::Status status = running.pass.Step();
  const Time end = queue_.now();
  running.seconds += Seconds(end - start);
  running.model.metrics->CountDevice(Seconds(end - start), running.background);
  running.step_seconds = Seconds(end - std::exchange(running.stepped, end));
  if (running.pass.between_waves()) running.wave_seconds = Seconds(end - std::exchange(running.wave_began, end));
  Tell(running, Seconds(end - start) + std::exchange(running.start_seconds, 0.0));
  if (!status.ok()) return Fail(running, status);
  EndAnswered(running);
  if (running.waited_for == 0) Erase(running);
}

void Passes::EndAnswered(Running& running) {
  const Time now = queue_.now();
  for (Running::Member& member : running.members) {
    Request& request = *member.request;
    const auto inputs = static_cast<int64_t>(request.work.inputs.size());
    if (member.ended || !running.Done(member)) continue;
    absl::Status status = CancelledOrExpired(request, now);
    if (!status.ok()) {
      running.Leave(member, status);
      continue;
    }
    for (int64_t i = 0; i < inputs; ++i) {
      InputResult& result = request.outcome.results.emplace_back(running.pass.TakeResult(member.first_input + i));
      if (status.ok() && !result.status.ok()) {
        status = {result.status.code(), absl::StrCat("inputs[", i, "] ", result.status.message())};
      }
    }
    running.whole &= status.ok();
    for (int64_t i = 0; i < inputs && status.ok(); ++i) {
      running.observed += request.ticket.model->costs->Observed(*request.ticket.model->model, RunOf(request, i),
                                                                request.outcome.results[i]);
    }
    running.End(member, status);
  }
  if (!running.whole || running.waited_for > 0) return;
  running.model.costs->Observe(running.observed, running.seconds);
  if (!running.limited && !running.background)
    running.model.metrics->CountPrediction(running.predicted, running.seconds);
}

void Passes::Fail(Running& running, const absl::Status& status) {
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&running](const auto& each) { return each.get() == &running; });
  std::unique_ptr<Running> failed = std::move(*place);
  running_.erase(place);
  if (!failed->background) queue_.Ended(failed->number);
  std::erase_if(failed->members, [](const Running::Member& member) { return member.ended; });
  const absl::Status answer = DeviceFailure(status);
  if (failed->members.size() == 1) return failed->End(failed->members[0], answer);
  Requests requests;
  for (Running::Member& member : failed->members) {
    member.request->outcome.compute_seconds += failed->seconds;
    requests.push_back(std::move(member.request));
  }
  failed.reset();  // frees its memory
  for (std::shared_ptr<Request>& request : requests) {
    const Ticket& ticket = request->ticket;
    const uint64_t number =
        queue_.Started({.level = ticket.priority - 1, .principal = ticket.principal.name, .stopping = ticket.stopping});
    running_.push_back(Make({std::move(request)}, number));
    Tell(*running_.back(), 0.0);
  }
}

}  // namespace edgewise::server
