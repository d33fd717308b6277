// An accepted request on its way to the engine and back.
#ifndef EDGEWISE_SERVER_TASK_H_
#define EDGEWISE_SERVER_TASK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"

namespace edgewise::server {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct LoadedModel;

// Counts a request in a gauge until it is reset or destroyed (LoadedMetrics makes them). Any thread.
using GaugeHold = std::shared_ptr<void>;

// Requests of level 1 go first, then 2, then 3; 0 in a request means 2.
inline constexpr uint32_t kPriorityLevels = 3;
inline constexpr uint32_t kDefaultPriority = 2;

struct TaskResult {
  absl::Status status;
  std::vector<ModelInput> inputs;    // the inputs of the task, handed back when OK
  std::vector<InputResult> results;  // one per input, when OK
  double queue_seconds = 0.0;
  double compute_seconds = 0.0;
  double cancelled_seconds = 0.0;  // the part of compute_seconds that was wasted: the request was cancelled or expired
  uint32_t batch_inputs = 0;       // of the batch; for a generation: how many generations ran at its end
  uint64_t batch_tokens = 0;       // valid tokens of the batch
  GaugeHold gauge;                 // of the task, to be reset in the event that counts this result
};

// The state of a generation when it gives a token.
struct GenerationProgress {
  FinishReason finish = FinishReason::kNone;  // any other: this token is the last
  double queue_seconds = 0.0;
  double compute_seconds = 0.0;  // spent on this generation alone
  uint32_t running = 0;          // generations side by side, this one included
};

// The prompt and options of a generation. The functions are called on the engine's thread, before `Task::done`; they
// must not block.
struct GenerationWork {
  ModelSequence prompt;
  GenerationOptions options;
  uint64_t cache_bytes = 0;                                                     // at most, while it runs
  std::function<bool()> ready;                                                  // whether the client takes a token now
  std::function<void(const GeneratedToken&, const GenerationProgress&)> token;  // every token, in order
};

// Owned by the queue, then by the engine. `done` is called exactly once, on any thread; it must not block.
struct Task {
  std::shared_ptr<const LoadedModel> model;
  std::vector<ModelInput> inputs;
  std::unique_ptr<GenerationWork> generation;  // null: a Predict request; otherwise `inputs` is empty
  uint64_t tokens = 0;                         // valid tokens of all inputs, one sample
  uint64_t cost = 0;  // for the queue's limit: positions, pads included, entries of biases and edges of given graphs
  uint32_t priority = kDefaultPriority;  // 1..kPriorityLevels
  Time queued;
  Time deadline = Time::max();
  std::stop_token stopping;  // requested by gRPC when the client cancels or disconnects; by nothing else
  GaugeHold gauge;           // counts the task as waiting, then, if it is a generation, as running
  std::function<void(TaskResult)> done;
};

using TaskPtr = std::unique_ptr<Task>;

// CANCELLED or DEADLINE_EXCEEDED for a task that nobody waits for any more; OK for the others.
inline absl::Status CancelledOrExpired(const Task& task, Time now) {
  const bool cancelled = task.stopping.stop_requested();
  // A client cancels when its own clock reaches the deadline, which may be a moment before this one does.
  const Time expiry =
      cancelled && task.deadline != Time::max() ? task.deadline - std::chrono::milliseconds(5) : task.deadline;
  if (now >= expiry) return absl::DeadlineExceededError("the deadline has passed");
  if (cancelled) return absl::CancelledError("the client cancelled the request");
  return absl::OkStatus();
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_TASK_H_
