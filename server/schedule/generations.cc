#include "server/schedule/generations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/forward/softmax.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/device_failure.h"
#include "server/status_details.h"
#include "text/field_error.h"

namespace edgewise::server {
namespace {

// The error of a generation that could not start: a row cannot keep the budget, or the device failed.
absl::Status StartFailure(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return DeviceFailure(status);
  return WithRejection(Within("budget", status), Rejection::kBudget);
}

}  // namespace

bool Generations::stalled() const {
  return std::none_of(running_.begin(), running_.end(),
                      [](const Running& running) { return running.task->generation->ready(); });
}

GenerationRoom Generations::room() const {
  return {max_generations_ - std::min(max_generations_, running_.size()),
          max_cache_bytes_ - std::min(max_cache_bytes_, cache_bytes_)};
}

void Generations::Start(TaskPtr task) {
  const Time start = queue_.now();
  Running running;
  running.queue_seconds = Seconds(start - task->queued);
  running.ready = start;
  running.task = std::move(task);
  Task& started = *running.task;
  {
    LoadedMetrics& metrics = *started.model->metrics;
    const MetricsEvent event = metrics.Event();
    started.gauge = metrics.HoldGeneration();
  }
  started.generation->options.stopping = started.stopping;
  cache_bytes_ += started.generation->cache_bytes;
  absl::StatusOr<std::unique_ptr<Generation>> generation = Generation::Create(
      *started.model->model, std::move(started.generation->prompt), std::move(started.generation->options));
  running.compute_seconds = Seconds(queue_.now() - start);
  if (!generation.ok()) return Answer(running, StartFailure(generation.status()));
  running.generation = *std::move(generation);
  running_.push_back(std::move(running));
}

void Generations::AnswerEnded() {
  const Time now = queue_.now();
  const bool shutdown = queue_.cancelled();
  for (size_t left = running_.size(); left > 0; --left) {
    Running running = std::move(running_.front());
    running_.pop_front();
    absl::Status reason = shutdown ? ShuttingDown() : CancelledOrExpired(*running.task, now);
    if (running.task->generation->ready()) running.ready = now;
    if (reason.ok() && now - running.ready >= unread_timeout_) {
      reason = absl::CancelledError(absl::StrCat("the client took no token for ", Seconds(unread_timeout_), " s"));
    }
    if (reason.ok()) {
      running_.push_back(std::move(running));
    } else {
      Answer(running, std::move(reason), running.compute_seconds);
    }
  }
}

bool Generations::Step() {
  const bool prefilling = std::any_of(running_.begin(), running_.end(),
                                      [](const Running& running) { return running.generation->holds_rows(); });
  for (size_t left = running_.size(); left > 0; --left) {
    Running running = std::move(running_.front());
    running_.pop_front();
    const Generation& generation = *running.generation;
    const bool begins = generation.prompt_next() && !generation.holds_rows();
    const bool can_step = running.task->generation->ready() && !(begins && prefilling);
    if (!can_step || Advance(running)) running_.push_back(std::move(running));
    if (can_step) return true;
  }
  return false;
}

bool Generations::Advance(Running& running) {
  const Task& task = *running.task;
  const Time start = queue_.now();
  const absl::Status step = running.generation->Step();
  running.compute_seconds += Seconds(queue_.now() - start);
  if (absl::IsCancelled(step)) {
    Answer(running, CancelledOrExpired(task, queue_.now()), running.compute_seconds);
    return false;
  }
  if (!step.ok()) {
    Answer(running, IsNonFiniteOutput(step) ? step : DeviceFailure(step));
    return false;
  }
  const FinishReason finish = running.generation->finish_reason();
  if (const std::optional<GeneratedToken> token = running.generation->TakeToken()) {
    task.generation->token(
        *token, {finish, running.queue_seconds, running.compute_seconds, static_cast<uint32_t>(running_.size() + 1)});
  }
  if (finish == FinishReason::kNone) return true;
  Answer(running, absl::OkStatus());
  return false;
}

void Generations::Answer(Running& running, absl::Status status, double cancelled_seconds) {
  TaskResult result;
  result.status = std::move(status);
  result.queue_seconds = running.queue_seconds;
  result.compute_seconds = running.compute_seconds;
  result.cancelled_seconds = cancelled_seconds;
  result.batch_inputs = static_cast<uint32_t>(running_.size() + 1);
  result.gauge = std::move(running.task->gauge);
  running.generation.reset();  // frees its memory before the client hears of the end
  cache_bytes_ -= running.task->generation->cache_bytes;
  running.task->done(std::move(result));
}

}  // namespace edgewise::server
