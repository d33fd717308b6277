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
                      [](const Running& running) { return running.request->generation->ready(); });
}

GenerationRoom Generations::room() const {
  return {max_generations_ - std::min(max_generations_, running_.size()),
          max_cache_bytes_ - std::min(max_cache_bytes_, cache_bytes_)};
}

void Generations::Start(RequestPtr request) {
  const Time start = queue_.now();
  Running running{std::move(request), nullptr, start};
  Request& started = *running.request;
  started.queue_seconds = Seconds(start - started.queued);
  started.model->metrics->CountGeneration(started);
  cache_bytes_ += started.generation->cache_bytes;
  absl::StatusOr<std::unique_ptr<Generation>> generation =
      Generation::Create(*started.model->model, std::move(started.generation->prompt), started.generation->options);
  started.compute_seconds = Seconds(queue_.now() - start);
  if (!generation.ok()) return End(running, StartFailure(generation.status()));
  running.generation = *std::move(generation);
  running_.push_back(std::move(running));
}

void Generations::EndExpired() {
  const Time now = queue_.now();
  const bool shutdown = queue_.cancelled();
  for (size_t left = running_.size(); left > 0; --left) {
    Running running = std::move(running_.front());
    running_.pop_front();
    absl::Status reason = shutdown ? ShuttingDown() : CancelledOrExpired(*running.request, now);
    if (running.request->generation->ready()) running.ready = now;
    if (reason.ok() && now - running.ready >= unread_timeout_) {
      reason = absl::CancelledError(absl::StrCat("the client took no token for ", Seconds(unread_timeout_), " s"));
    }
    if (reason.ok()) {
      running_.push_back(std::move(running));
    } else {
      End(running, reason, true);
    }
  }
}

bool Generations::CanStep(const Running& running) const {
  if (!running.request->generation->ready()) return false;
  if (!running.generation->prompt_next() || running.generation->holds_rows()) return true;
  return std::none_of(running_.begin(), running_.end(), [&](const Running& other) {
    return other.request->priority == running.request->priority && other.generation->holds_rows();
  });
}

PerLevel<bool> Generations::CanStep() const {
  PerLevel<bool> can = {};
  for (const Running& running : running_) can[running.request->priority - 1] |= CanStep(running);
  return can;
}

void Generations::Step(uint32_t level) {
  for (auto running = running_.begin(); running != running_.end(); ++running) {
    if (running->request->priority - 1 != level || !CanStep(*running)) continue;
    Running next = std::move(*running);
    running_.erase(running);
    if (Advance(next)) running_.push_back(std::move(next));
    return;
  }
}

bool Generations::Advance(Running& running) {
  Request& request = *running.request;
  const Time start = queue_.now();
  const absl::Status step = running.generation->Step();
  request.compute_seconds += Seconds(queue_.now() - start);
  if (absl::IsCancelled(step)) {
    End(running, CancelledOrExpired(request, queue_.now()), true);
    return false;
  }
  if (!step.ok()) {
    End(running, IsNonFiniteOutput(step) ? step : DeviceFailure(step));
    return false;
  }
  const FinishReason finish = running.generation->finish_reason();
  request.batch_inputs = static_cast<uint32_t>(running_.size() + 1);
  if (const std::optional<GeneratedToken> token = running.generation->TakeToken()) {
    request.generation->token(*token, finish);
  }
  if (finish == FinishReason::kNone) return true;
  End(running, absl::OkStatus());
  return false;
}

void Generations::End(Running& running, const absl::Status& status, bool wasted) {
  Request& request = *running.request;
  if (wasted) request.cancelled_seconds = request.compute_seconds;
  running.generation.reset();  // frees its memory before the client hears of the end
  cache_bytes_ -= request.generation->cache_bytes;
  request.done(status);
}

}  // namespace edgewise::server
