#include "server/schedule/engine.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/pass.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/device_failure.h"
#include "server/status_details.h"

namespace edgewise::server {

// The tasks that run together: their inputs in one list, and which of them belong to which task.
struct Engine::RunningBatch {
  struct Member {
    TaskPtr task;  // null once answered
    int64_t first_input = 0;
    int64_t num_inputs = 0;
    double queue_seconds = 0.0;
  };

  std::vector<Member> members;
  std::vector<ModelInput> inputs;
  uint64_t tokens = 0;
  double compute_seconds = 0.0;  // in its own layers: generations take their steps between them

  RunningBatch(std::vector<TaskPtr> tasks, Time start) {
    for (TaskPtr& task : tasks) {
      members.push_back({nullptr, static_cast<int64_t>(inputs.size()), static_cast<int64_t>(task->inputs.size()),
                         Seconds(start - task->queued)});
      tokens += task->tokens;
      for (ModelInput& input : task->inputs) {
        input.stopping = task->stopping;
        inputs.push_back(std::move(input));
      }
      members.back().task = std::move(task);
    }
  }

  bool AllAnswered() const {
    return std::none_of(members.begin(), members.end(), [](const Member& member) { return member.task != nullptr; });
  }

  void Answer(Member& member, absl::Status status, std::vector<InputResult> results = {},
              double cancelled_share = 0.0) {
    TaskResult result;
    if (status.ok()) {
      const auto first = inputs.begin() + member.first_input;
      result.inputs.assign(std::make_move_iterator(first), std::make_move_iterator(first + member.num_inputs));
    }
    result.status = std::move(status);
    result.results = std::move(results);
    result.queue_seconds = member.queue_seconds;
    result.compute_seconds = compute_seconds;
    result.cancelled_seconds = compute_seconds * cancelled_share;
    result.batch_inputs = static_cast<uint32_t>(inputs.size());
    result.batch_tokens = tokens;
    std::exchange(member.task, nullptr)->done(std::move(result));
  }

  // Takes the tasks that nobody waits for out of the pass; all of them at a shutdown.
  void CancelEnded(Pass& pass, Time now, bool shutdown) {
    for (Member& member : members) {
      if (!member.task) continue;
      absl::Status reason = shutdown ? ShuttingDown() : CancelledOrExpired(*member.task, now);
      if (reason.ok()) continue;
      for (int64_t i = 0; i < member.num_inputs; ++i) pass.Cancel(member.first_input + i, reason);
      Answer(member, std::move(reason), {}, static_cast<double>(member.task->tokens) / static_cast<double>(tokens));
    }
  }

  // Answers with the results of the pass; a task with an input that has none gets the status of the first such.
  void AnswerResults(Pass& pass) {
    for (Member& member : members) {
      if (!member.task) continue;
      absl::Status status;
      std::vector<InputResult> results;
      for (int64_t i = 0; i < member.num_inputs; ++i) {
        results.push_back(pass.TakeResult(member.first_input + i));
        const absl::Status& of_input = results.back().status;
        if (status.ok() && !of_input.ok()) {
          status = absl::Status(of_input.code(), absl::StrCat("inputs[", i, "] ", of_input.message()));
        }
      }
      Answer(member, std::move(status), std::move(results));
    }
  }
};

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
    generations_.AnswerEnded();
    if (!work.batch.empty()) {
      RunBatch(std::move(work.batch));
    } else {
      generations_.Step();
      generation_seconds_ = 0.0;  // no batch competes
    }
    after_work_();
  }
}

void Engine::ShareWithGenerations(double seconds) {
  while (TaskPtr task = queue_.NextGeneration(generations_.room())) generations_.Start(std::move(task));
  generation_seconds_ += seconds;
  while (generation_seconds_ > 0.0) {
    const Time start = queue_.now();
    generations_.AnswerEnded();
    if (!generations_.Step()) {
      generation_seconds_ = 0.0;
    } else {
      generation_seconds_ -= Seconds(queue_.now() - start);
    }
  }
}

void Engine::RunBatch(std::vector<TaskPtr> tasks) {
  const Time start = queue_.now();
  const std::shared_ptr<const LoadedModel> model = tasks.front()->model;
  const size_t requests = tasks.size();
  RunningBatch batch(std::move(tasks), start);
  {
    const MetricsEvent event = model->metrics->Event();
    for (RunningBatch::Member& member : batch.members) member.task->gauge.reset();
    model->metrics->ObserveBatch(static_cast<uint32_t>(batch.inputs.size()), batch.tokens);
  }
  Pass pass(*model->model, batch.inputs, {});
  if (!RunSteps(pass, batch)) return;
  batch.CancelEnded(pass, queue_.now(), false);  // a task that ended in the last step may have no result
  queue_.RecordBatch(requests, Seconds(queue_.now() - start));
  batch.AnswerResults(pass);
}

bool Engine::RunSteps(Pass& pass, RunningBatch& batch) {
  while (!pass.done()) {
    batch.CancelEnded(pass, queue_.now(), queue_.cancelled());
    if (batch.AllAnswered()) return false;
    queue_.AnswerEnded();
    const Time start = queue_.now();
    absl::Status step = pass.Step();
    const double seconds = Seconds(queue_.now() - start);
    batch.compute_seconds += seconds;
    if (!step.ok()) {
      step = DeviceFailure(step);
      for (RunningBatch::Member& member : batch.members) {
        if (member.task) batch.Answer(member, step);
      }
      return false;
    }
    ShareWithGenerations(seconds);
  }
  return true;
}

}  // namespace edgewise::server
