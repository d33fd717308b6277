#include "server/schedule/passes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/pass.h"
#include "server/cost_model.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/degrade.h"
#include "server/schedule/device_failure.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

using Requests = std::vector<std::shared_ptr<Request>>;  // that ended may wait for their answers

constexpr double kLeastLeft = 0.02;     // of its prediction: what a pass is taken to have left when that has run out
constexpr int64_t kLeastStepRows = 64;  // fewer share too little of reading the weights

// Under consent: what a wave takes of the seconds until the deadline, and what is left for the answer of the whole
// time, beside kAnswer.
constexpr double kWaveShare = 0.125, kAnswerShare = 0.1;

std::vector<const ModelInput*> InputsOf(const Requests& requests) {
  std::vector<const ModelInput*> inputs;
  for (const std::shared_ptr<Request>& request : requests) {
    for (const ModelInput& input : request->inputs) inputs.push_back(&input);
  }
  return inputs;
}

Demand SumOf(const Requests& requests) {
  Demand demand;
  for (const std::shared_ptr<Request>& request : requests) demand += request->demand;
  return demand;
}

// The most rows of a wave, so that requests under consent can end in time; one sample of all inputs goes together.
int64_t WaveTokens(const Requests& requests, const Demand& demand, double predicted, int64_t most, Time now) {
  double tokens = 0.0, slack = std::numeric_limits<double>::infinity();
  for (const std::shared_ptr<Request>& request : requests) {
    tokens += static_cast<double>(request->tokens);
    if (request->consent.given) slack = std::min(slack, SlackOf(*request, now));
  }
  if (!std::isfinite(slack)) return most;
  const double rows = predicted > 0.0 ? demand.tokens * std::max(0.0, kWaveShare * slack) / predicted : 0.0;
  return static_cast<int64_t>(std::min(std::max(rows, tokens), static_cast<double>(most)));
}

double OwnShare(const Requests& requests) {
  double seconds = 0.0;
  for (const std::shared_ptr<Request>& request : requests) seconds += request->predicted_seconds;
  return seconds > 0.0 ? requests[0]->predicted_seconds / seconds : 1.0;
}

}  // namespace

struct Passes::Running {
  struct Member {
    std::shared_ptr<Request> request;  // kept after its end: the pass refers to its inputs
    int64_t first_input = 0;
    bool ended = false;
  };

  Running(Requests requests, Pass::Options options, Answers& to_end)
      : answers(to_end),
        level(requests[0]->priority - 1),
        principal(requests[0]->principal.name),
        own(OwnShare(requests)),
        background(requests[0]->background),
        demand(SumOf(requests)),
        pass(*requests[0]->model->model, InputsOf(requests), options) {
    for (std::shared_ptr<Request>& request : requests) {
      tokens += request->tokens;
      members.push_back({std::move(request), inputs});
      inputs += static_cast<int64_t>(members.back().request->inputs.size());
    }
  }

  const LoadedModel& model() const { return *members[0].request->model; }
  // The samples that every input of the request has.
  uint32_t SamplesDone(const Member& member) const {
    uint32_t done = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i < member.request->inputs.size(); ++i) {
      done = std::min(done, pass.samples_done(member.first_input + static_cast<int64_t>(i)));
    }
    return done;
  }
  // The seconds that its requests may give up of those that are left; 0 where one of them has not agreed.
  double Spare(double remaining) const {
    double least = 0.0;
    for (const Member& member : members) {
      if (member.ended) continue;
      if (!member.request->consent.given) return 0.0;
      if (SamplesDone(member) == 0) least += member.request->consent.one_seconds;
    }
    return std::max(0.0, remaining - least);
  }
  void Limit(Member& member, uint32_t samples, DegradedBy reason) {
    Request& request = *member.request;
    if (!request.consent.given || samples >= request.consent.samples) return;
    Lower(request, {samples}, reason);
    for (size_t i = 0; i < request.inputs.size(); ++i) {
      pass.Limit(member.first_input + static_cast<int64_t>(i), request.consent.samples);
    }
    limited = true;
    whole &= pass.between_waves();  // otherwise samples that run are lost
  }
  // All inputs of the request have their results.
  bool Done(const Member& member) const {
    for (size_t i = 0; i < member.request->inputs.size(); ++i) {
      if (!pass.done(member.first_input + static_cast<int64_t>(i))) return false;
    }
    return true;
  }
  bool AllDone() const {
    return std::all_of(members.begin(), members.end(),
                       [this](const Member& member) { return member.ended || Done(member); });
  }
  // The last deadline of those who wait for it.
  Time Ends() const {
    Time ends = Time::min();
    for (const Member& member : members) {
      if (!member.ended) ends = std::max(ends, member.request->deadline);
    }
    return ends;
  }
  bool AllEnded() const {
    return std::all_of(members.begin(), members.end(), [](const Member& member) { return member.ended; });
  }

  void End(Member& member, const absl::Status& status) {
    member.request->compute_seconds += seconds;
    member.ended = true;
    answers.End(member.request, status);
  }
  // Nobody waits for it any more.
  void Leave(Member& member, const absl::Status& reason) {
    const double share = static_cast<double>(member.request->tokens) / static_cast<double>(tokens);
    member.request->cancelled_seconds += seconds * share;
    whole = false;
    End(member, reason);
  }

  Answers& answers;
  std::vector<Member> members;
  int64_t inputs = 0;
  uint64_t tokens = 0;  // valid ones, one sample
  const uint32_t level;
  const std::string principal;  // of the first request
  const double own;             // that request's part of the work, as predicted
  const bool background;
  const Demand demand;
  double predicted = 0.0;                         // seconds
  double seconds = 0.0;                           // in its steps so far
  bool whole = true;                              // nobody left it, and all samples that ran count
  bool limited = false;                           // it runs fewer samples than predicted
  double wave_seconds = 0.0, step_seconds = 0.0;  // the last, other passes in between included
  Time wave_began;
  Demand observed;  // of the requests that were answered
  Time stepped;
  Pass pass;
};

Passes::Passes(RequestQueue& queue, Answers& answers, Clock::duration max_step)
    : queue_(queue), answers_(answers), max_step_seconds_(Seconds(max_step)) {}
Passes::~Passes() = default;

std::vector<RunningPass> Passes::View() const {
  std::vector<RunningPass> view;
  for (const auto& running : running_) {
    const double remaining =
        running->AllDone() ? 0.0 : std::max(running->predicted - running->seconds, kLeastLeft * running->predicted);
    view.push_back({running->level, remaining, running->stepped, running->principal, running->own,
                    running->Spare(remaining), running->Ends(),
                    running->members.size() == 1 ? running->members[0].request->stopping : std::stop_token()});
  }
  return view;
}

std::unique_ptr<Passes::Running> Passes::Make(Requests requests) const {
  const LoadedModel& model = *requests[0]->model;
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
  auto running = std::make_unique<Running>(std::move(requests), options, answers_);
  running->predicted = predicted;
  running->stepped = running->wave_began = queue_.now();
  return running;
}

void Passes::Start(std::vector<RequestPtr> requests) {
  const Time now = queue_.now();
  running_.push_back(Make({std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end())}));
  Running& running = *running_.back();
  running.seconds = Seconds(queue_.now() - now);
  std::vector<Request*> started;
  for (Running::Member& member : running.members) {
    Request& request = *started.emplace_back(member.request.get());
    request.queue_seconds = Seconds(now - request.queued);
    request.batch_inputs = static_cast<uint32_t>(running.inputs);
    request.batch_tokens = running.tokens;
  }
  if (running.background) return;
  running.model().metrics->CountBatch(started);
}

void Passes::AnswerInTime(Running& running, Time now) {
  const double next = running.pass.between_waves() ? running.wave_seconds : running.step_seconds;
  bool limited = false;
  for (Running::Member& member : running.members) {
    const Request& request = *member.request;
    if (member.ended || !request.consent.given || request.deadline == Time::max()) continue;
    const double answer = Seconds(kAnswer) + kAnswerShare * Seconds(request.deadline - request.arrival);
    const uint32_t done = running.SamplesDone(member);
    if (done == 0 || SlackOf(request, now) >= next + answer) continue;
    running.Limit(member, done, DegradedBy::kDeadline);
    limited = true;
  }
  if (limited) EndAnswered(running);
}

void Passes::EndDue() {
  const Time now = queue_.now();
  for (const auto& running : running_) {
    if (!queue_.cancelled()) AnswerInTime(*running, now);
    for (Running::Member& member : running->members) {
      if (member.ended) continue;
      const absl::Status reason = queue_.cancelled() ? ShuttingDown() : CancelledOrExpired(*member.request, now);
      if (reason.ok()) continue;
      for (size_t i = 0; i < member.request->inputs.size(); ++i) {
        running->pass.Cancel(member.first_input + static_cast<int64_t>(i), reason);
      }
      running->Leave(member, reason);
    }
  }
  std::erase_if(running_, [](const auto& running) { return running->AllEnded(); });
}

void Passes::Step(size_t pass, double share) {
  Running& running = *running_[pass];
  for (Running::Member& member : running.members) {
    if (share >= 1.0 || member.ended) continue;
    const uint32_t done = running.SamplesDone(member), samples = member.request->consent.samples;
    const uint32_t more = samples - std::min(samples, std::max(done, 1u));
    running.Limit(member, samples - more + static_cast<uint32_t>(share * more), DegradedBy::kLoad);
  }
  const Time start = queue_.now();
  const absl::Status status = running.pass.Step();
  const Time end = queue_.now();
  running.seconds += Seconds(end - start);
  running.model().metrics->CountDevice(Seconds(end - start), running.background);
  running.step_seconds = Seconds(end - std::exchange(running.stepped, end));
  if (running.pass.between_waves()) running.wave_seconds = Seconds(end - std::exchange(running.wave_began, end));
  if (!status.ok()) return Fail(pass, status);
  EndAnswered(running);
  if (!running.AllEnded()) return;
  running_.erase(running_.begin() + static_cast<int64_t>(pass));
}

void Passes::EndAnswered(Running& running) {
  const Time now = queue_.now();
  // A client that has its answer may send again before the engine asks for its next turn.
  if (!running.background && running.AllDone()) queue_.SetRunning(View());
  for (Running::Member& member : running.members) {
    Request& request = *member.request;
    const auto inputs = static_cast<int64_t>(request.inputs.size());
    if (member.ended || !running.Done(member)) continue;
    absl::Status status = CancelledOrExpired(request, now);
    if (!status.ok()) {
      running.Leave(member, status);
      continue;
    }
    for (int64_t i = 0; i < inputs; ++i) {
      InputResult& result = request.results.emplace_back(running.pass.TakeResult(member.first_input + i));
      if (status.ok() && !result.status.ok()) {
        status = {result.status.code(), absl::StrCat("inputs[", i, "] ", result.status.message())};
      }
    }
    running.whole &= status.ok();
    for (int64_t i = 0; i < inputs && status.ok(); ++i) {
      running.observed += request.model->costs->Observed(*request.model->model, request.inputs[i], request.results[i]);
    }
    running.End(member, status);
  }
  if (!running.whole || !running.AllEnded()) return;
  running.model().costs->Observe(running.observed, running.seconds);
  if (!running.limited && !running.background)
    running.model().metrics->CountPrediction(running.predicted, running.seconds);
}

void Passes::Fail(size_t pass, const absl::Status& status) {
  std::unique_ptr<Running> failed = std::move(running_[pass]);
  running_.erase(running_.begin() + static_cast<int64_t>(pass));
  std::erase_if(failed->members, [](const Running::Member& member) { return member.ended; });
  const absl::Status answer = DeviceFailure(status);
  if (failed->members.size() == 1) return failed->End(failed->members[0], answer);
  Requests requests;
  for (Running::Member& member : failed->members) {
    member.request->compute_seconds += failed->seconds;
    requests.push_back(std::move(member.request));
  }
  failed.reset();  // frees its memory
  for (std::shared_ptr<Request>& request : requests) running_.push_back(Make({std::move(request)}));
}

}  // namespace edgewise::server
