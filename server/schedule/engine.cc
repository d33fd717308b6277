#include "server/schedule/engine.h"

#include <pthread.h>

#include <iterator>
#include <utility>

#include "model/forward/pass.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/device_failure.h"
#include "server/status_details.h"

namespace edgewise::server {
namespace {

// A batch while it runs: the inputs of all tasks in one list, and which of them belong to which task.
struct Running {
  struct Member {
    TaskPtr task;  // null once answered
    int64_t first_input = 0;
    int64_t num_inputs = 0;
    double queue_seconds = 0.0;
    double cancelled_seconds = 0.0;
  };

  std::vector<Member> members;
  std::vector<ModelInput> inputs;
  uint64_t tokens = 0;
  double compute_seconds = 0.0;  // in its own layers: generations take their steps between them

  bool AnyLive() const {
    for (const Member& member : members) {
      if (member.task) return true;
    }
    return false;
  }

  void Answer(Member& member, absl::Status status, std::vector<InputResult> results) {
    TaskResult result;
    if (status.ok()) {
      const auto first = inputs.begin() + member.first_input;
      result.inputs.assign(std::make_move_iterator(first), std::make_move_iterator(first + member.num_inputs));
    }
    result.status = std::move(status);
    result.results = std::move(results);
    result.queue_seconds = member.queue_seconds;
    result.compute_seconds = compute_seconds;
    result.cancelled_seconds = member.cancelled_seconds;
    result.batch_inputs = static_cast<uint32_t>(inputs.size());
    result.batch_tokens = tokens;
    std::exchange(member.task, nullptr)->done(std::move(result));
  }
};

// OK, or the first input that has no result.
absl::Status TakeResults(Pass& pass, const Running::Member& member, std::vector<InputResult>& results) {
  absl::Status status;
  for (int64_t i = 0; i < member.num_inputs; ++i) {
    results.push_back(pass.TakeResult(member.first_input + i));
    const absl::Status& of_input = results.back().status;
    if (status.ok() && !of_input.ok()) {
      status = absl::Status(of_input.code(), "inputs[" + std::to_string(i) + "] " + std::string(of_input.message()));
    }
  }
  return status;
}

}  // namespace

void Engine::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine");
    Run();
  });
}

void Engine::Join() {
  if (thread_.joinable()) thread_.join();
}

void Engine::Run() {
  while (true) {
    const Wait wait = generations_.empty() ? Wait::kForWork : generations_.stalled() ? Wait::kAWhile : Wait::kNot;
    Work work = queue_.Next(wait, generations_.room());
    if (work.end() && generations_.empty()) return;
    if (work.job) work.job();
    if (work.generation) generations_.Start(std::move(work.generation));
    generations_.EndCancelled();
    if (!work.batch.empty()) {
      RunBatch(std::move(work.batch));
    } else {
      generations_.Step();
      owed_seconds_ = 0.0;  // nobody competes
    }
    after_work_();
  }
}

void Engine::ShareWithGenerations(double seconds) {
  while (TaskPtr task = queue_.NextGeneration(generations_.room())) generations_.Start(std::move(task));
  owed_seconds_ += seconds;
  while (owed_seconds_ > 0.0) {
    const Time start = queue_.now();
    generations_.EndCancelled();
    if (!generations_.Step()) {
      owed_seconds_ = 0.0;
    } else {
      owed_seconds_ -= Seconds(queue_.now() - start);
    }
  }
}

void Engine::RunBatch(std::vector<TaskPtr> batch) {
  Running running;
  const Time start = queue_.now();
  const std::shared_ptr<const LoadedModel> model = batch.front()->model;
  const size_t requests = batch.size();
  for (TaskPtr& task : batch) {
    Running::Member member;
    member.first_input = static_cast<int64_t>(running.inputs.size());
    member.num_inputs = static_cast<int64_t>(task->inputs.size());
    member.queue_seconds = Seconds(start - task->queued);
    running.tokens += task->tokens;
    for (ModelInput& input : task->inputs) {
      input.stopping = task->stopping;
      running.inputs.push_back(std::move(input));
    }
    member.task = std::move(task);
    running.members.push_back(std::move(member));
  }
  LoadedMetrics& metrics = *model->metrics;
  {
    const MetricsEvent event = metrics.Event();
    metrics.AddQueued(-static_cast<int>(requests), -static_cast<int64_t>(running.tokens));
    metrics.ObserveBatch(static_cast<uint32_t>(running.inputs.size()), running.tokens);
  }

  Pass pass(*model->model, running.inputs, {});
  const auto drop_dead = [&](bool aborted) {
    const Time now = queue_.now();
    for (Running::Member& member : running.members) {
      if (!member.task) continue;
      absl::Status alive = aborted ? ShuttingDown() : Alive(*member.task, now);
      if (alive.ok()) continue;
      for (int64_t i = 0; i < member.num_inputs; ++i) pass.Cancel(member.first_input + i, alive);
      const double share = static_cast<double>(member.task->tokens) / static_cast<double>(running.tokens);
      member.cancelled_seconds = running.compute_seconds * share;
      running.Answer(member, std::move(alive), {});
    }
  };
  while (!pass.done()) {
    drop_dead(queue_.aborted());
    if (!running.AnyLive()) return;
    queue_.AnswerEnded();
    const Time step_start = queue_.now();
    absl::Status step = pass.Step();
    const double step_seconds = Seconds(queue_.now() - step_start);
    running.compute_seconds += step_seconds;
    if (step.ok()) {
      ShareWithGenerations(step_seconds);
      continue;
    }
    step = DeviceFailure(step);
    for (Running::Member& member : running.members) {
      if (member.task) running.Answer(member, step, {});
    }
    return;
  }
  drop_dead(false);  // one that went in the last step may have no result
  queue_.RecordBatch(requests, Seconds(queue_.now() - start));
  for (Running::Member& member : running.members) {
    if (!member.task) continue;
    std::vector<InputResult> results;
    absl::Status status = TakeResults(pass, member, results);
    running.Answer(member, std::move(status), std::move(results));
  }
}

}  // namespace edgewise::server
