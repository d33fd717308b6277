#include "server/engine.h"

#include <pthread.h>

#include <iterator>
#include <utility>

#include "model/pass.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/repository.h"
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
  };

  std::vector<Member> members;
  std::vector<ModelInput> inputs;
  uint64_t tokens = 0;
  Time start;

  bool AnyLive() const {
    for (const Member& member : members) {
      if (member.task) return true;
    }
    return false;
  }

  void Answer(Member& member, absl::Status status, std::vector<InputResult> results, Time now) {
    TaskResult result;
    if (status.ok()) {
      const auto first = inputs.begin() + member.first_input;
      result.inputs.assign(std::make_move_iterator(first), std::make_move_iterator(first + member.num_inputs));
    }
    result.status = std::move(status);
    result.results = std::move(results);
    result.queue_seconds = member.queue_seconds;
    result.compute_seconds = Seconds(now - start);
    result.batch_inputs = static_cast<uint32_t>(inputs.size());
    result.batch_tokens = tokens;
    std::exchange(member.task, nullptr)->done(std::move(result));
  }
};

// What a client is told when the device failed; what failed is logged only.
absl::Status DeviceFailure(const absl::Status& status) {
  Log(LogLevel::kError, "device failed",
      {{"code", absl::StatusCodeToString(status.code())}, {"error", std::string(status.message())}});
  if (absl::IsResourceExhausted(status)) return absl::ResourceExhaustedError("out of device memory");
  return absl::InternalError("the device failed while computing; the server's log says how");
}

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
    Work work = queue_.Next();
    if (work.end()) return;
    if (work.job) {
      work.job();
    } else {
      RunBatch(std::move(work.batch));
    }
  }
}

void Engine::RunBatch(std::vector<TaskPtr> batch) {
  Running running;
  running.start = queue_.now();
  const std::shared_ptr<const LoadedModel> model = batch.front()->model;
  const size_t requests = batch.size();
  for (TaskPtr& task : batch) {
    Running::Member member;
    member.first_input = static_cast<int64_t>(running.inputs.size());
    member.num_inputs = static_cast<int64_t>(task->inputs.size());
    member.queue_seconds = Seconds(running.start - task->queued);
    running.tokens += task->tokens;
    for (ModelInput& input : task->inputs) running.inputs.push_back(std::move(input));
    member.task = std::move(task);
    running.members.push_back(std::move(member));
  }
  LoadedMetrics& metrics = *model->metrics;
  for (const Running::Member& member : running.members) {
    metrics.AddQueued(-1, -static_cast<int64_t>(member.task->tokens));
  }
  metrics.ObserveBatch(static_cast<uint32_t>(running.inputs.size()), running.tokens);

  Pass pass(*model->model, running.inputs, {});
  while (!pass.done()) {
    const Time now = queue_.now();
    for (Running::Member& member : running.members) {
      if (!member.task) continue;
      absl::Status alive = queue_.aborted() ? ShuttingDown() : Alive(*member.task, now);
      if (alive.ok()) continue;
      for (int64_t i = 0; i < member.num_inputs; ++i) pass.Drop(member.first_input + i, alive);
      const double share = static_cast<double>(member.task->tokens) / static_cast<double>(running.tokens);
      metrics.AddCancelledCompute(Seconds(now - running.start) * share);
      running.Answer(member, std::move(alive), {}, now);
    }
    if (!running.AnyLive()) return;
    queue_.AnswerDead();
    absl::Status step = pass.Step();
    if (step.ok()) continue;
    step = DeviceFailure(step);
    for (Running::Member& member : running.members) {
      if (member.task) running.Answer(member, step, {}, queue_.now());
    }
    return;
  }
  const Time now = queue_.now();
  queue_.RecordBatch(requests, Seconds(now - running.start));
  for (Running::Member& member : running.members) {
    if (!member.task) continue;
    std::vector<InputResult> results;
    absl::Status status = TakeResults(pass, member, results);
    running.Answer(member, std::move(status), std::move(results), now);
  }
}

}  // namespace edgewise::server
