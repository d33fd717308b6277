// A request from its arrival to its answer. Its end is counted and told in one place (handler/handler.h).
#ifndef EDGEWISE_SERVER_REQUEST_REQUEST_H_
#define EDGEWISE_SERVER_REQUEST_REQUEST_H_

#include <prometheus/gauge.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "server/base/memory.h"
#include "server/request/forecast.h"

namespace edgewise::v1 {
class GenerateResponse;
class PredictResponse;
class Settings;
}  // namespace edgewise::v1

namespace edgewise::server {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
// Whole microseconds, rounded down. Clocks tick in nanoseconds: half of one makes up for the rounding of the product.
inline uint64_t Microseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e6 + 0.0005); }

class AnswerLine;
struct Call;
struct LoadedModel;
class ModelMetrics;
struct Shadow;

// The last two: ModelInfer of the Open Inference Protocol, and its other methods.
enum class Rpc { kPredict, kPredictStream, kGenerate, kListModels, kGetModel, kModelInfer, kOpenInference };
enum class BudgetKind { kNone, kEdges, kDensity };

// Requests of level 1 go first, then 2, then 3; 0 in a message means 2.
inline constexpr uint32_t kPriorityLevels = 3;
inline constexpr uint32_t kDefaultPriority = 2;

// Whose request it is. Principals of one level share the device and the queue (schedule/scheduler.h).
struct Principal {
  std::string name;            // shown in no answer; never a secret
  uint32_t highest_level = 1;  // requests of a higher level are lowered to it
};

// A hold adds to a gauge until it is reset or destroyed: inside a MetricsEvent (observe/metrics.h), so that a scrape
// does not see one change without another.
struct Decrement {
  double amount = 0.0;
  void operator()(prometheus::Gauge* gauge) const { gauge->Decrement(amount); }
};
using GaugeHold = std::unique_ptr<prometheus::Gauge, Decrement>;
inline GaugeHold Hold(prometheus::Gauge* gauge, double amount = 1.0) {
  gauge->Increment(amount);
  return {gauge, {amount}};
}

// The parts of a prediction besides label and edges: OutputOptions of the message.
struct OutputSelection {
  bool logits = false;
  bool layer_stats = false;
  bool key_degrees = false;
  bool each_sample = false;
  bool graph = false;
  uint32_t top_k = 0;
  uint32_t dimensions = 0;  // of an embedding; 0: all
  bool token_scores = false;
  bool token_embeddings = false;
  bool input_tokens = false;

  bool operator==(const OutputSelection&) const = default;
};

// Receives the messages of one generation. Used by one thread at a time; no method may block.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  // Whether the stream takes another message now; if so, it does until one is sent. RequestHandler::Wake when that
  // becomes true.
  virtual bool ready() const = 0;
  virtual void Send(std::unique_ptr<v1::GenerateResponse> message) = 0;
};

// Who asks, until when, and how the answer goes back. The RPC makes it; RequestHandler names the model and the level.
// Constant from there on.
struct Ticket {
  Rpc rpc = Rpc::kPredict;  // for streams too; or kGenerate
  Call* call = nullptr;     // that asks for it; lives until `reply`. Null: nobody logs its end
  Time deadline = Time::max();
  // Requested by gRPC when the client cancels or disconnects; by nothing else. In the background: LoadedModel::leaving.
  std::stop_token stopping;
  Principal principal;
  std::function<void(const absl::Status&)> reply;  // called exactly once, on any thread; must not block
  v1::PredictResponse* response = nullptr;         // of Predict; filled before `reply` of an OK
  TokenStream* stream = nullptr;                   // of Generate; lives until `reply`
  bool json = false;        // the answer becomes JSON, which is some three times as long as the message
  uint64_t more_bytes = 0;  // in the answer to a Predict, beside the message
  // Orders `reply` and what `stream` gets among what the call sends (handler/answer_line.h). Null: nothing else is
  // sent.
  std::shared_ptr<AnswerLine> line;
  // The RPC holds it until its last message is sent. Admission makes it hold what the request takes from then on.
  MemoryHold* memory = nullptr;
  // Its message is long and is prepared on a thread for such (handler/long_work_threads.h).
  bool apart = false;
  bool alone = false;  // no other call is under way: the thread that brings it may compute it (schedule/queue.h)
  Time arrival;        // the RPC may set it, for a message that waited to be checked

  std::string id;
  uint32_t priority = kDefaultPriority;      // 1..kPriorityLevels
  std::shared_ptr<ModelMetrics> metrics;     // of the version asked for, or `_other`
  std::shared_ptr<const LoadedModel> model;  // once admitted
  // Nobody waits for it: it runs while nothing else does, and is not in the metrics of requests.
  bool background = false;
};

// The part of Work that Generate requests alone have.
struct GenerationWork {
  ModelSequence prompt;
  GenerationOptions options;
  CacheBytes cache_bytes;  // before it starts
};

// The checked message (validate/validate.h). Constant.
struct Work {
  uint64_t seed = 0;                             // drawn where the message has none
  std::shared_ptr<const v1::Settings> settings;  // as the answer reports them
  BudgetKind budget = BudgetKind::kNone;
  OutputSelection outputs;
  std::vector<ModelInput> inputs;            // of Predict
  std::optional<GenerationWork> generation;  // of Generate
  uint64_t tokens = 0;                       // valid tokens of all inputs, one sample
  uint64_t held_bytes = 0;                   // of the inputs, results and answer, at most
  uint64_t answer_bytes = 0;                 // of the message that answers a Predict, at most
  uint64_t cost = 0;  // for the queue's limit: positions, pads included, entries of biases and edges of given graphs
  bool may_degrade = false;    // its client takes less than it asked for (schedule/degrade.h)
  bool fits_deadline = false;  // likewise: as much as the deadline allows
};

// The course and the results of the computation, filled by the queue and the engine.
struct Outcome {
  Time queued;  // Time(): never
  double queue_seconds = 0.0;
  double compute_seconds = 0.0;
  double cancelled_seconds = 0.0;  // the part of compute_seconds that was wasted: the request was cancelled or expired
  uint32_t batch_inputs = 0;       // of the batch; for a generation: how many run side by side
  uint64_t batch_tokens = 0;       // valid tokens of the batch of a Predict
  std::vector<InputResult> results;  // one per input, when OK

  // Of a generation, counted as its tokens are sent (handler/handler.h).
  struct Generated {
    uint32_t tokens = 0;
    Time last;  // when the last was sent; or the arrival
    double edges = 0.0, pairs = 0.0;
    double utilization = -1.0;  // edges of the most expensive row over its cap; < 0: no budget
    bool capped = false;
  } generated;
};

// Three values that one stage each writes, and the outcome. Owned by the handler, the queue and the engine in turn. A
// Predict that is computed is owned by shared pointers.
struct Request : std::enable_shared_from_this<Request> {
  Ticket ticket;
  Work work;
  Forecast forecast;
  Outcome outcome;
  std::shared_ptr<Shadow> shadow;  // its second computation, in the background (handler/shadow.h); null: none

  // From the queue to the end.
  struct Gauges {
    GaugeHold in_flight, queued, queued_tokens, queued_seconds, generating;
  } gauges;

  // Called by the engine; none may block.
  std::function<bool()> ready;  // of a generation: whether the client takes a token now (TokenStream::ready)
  // Of a generation: every token, in order. Any reason but kNone: it is the last.
  std::function<void(const GeneratedToken&, FinishReason)> token;
  // From an OK of RequestQueue::Push on called exactly once, by the owner, on any thread.
  std::function<void(const absl::Status&)> done;
};

using RequestPtr = std::unique_ptr<Request>;

// An input of a Predict with the samples and the cap that it gets.
inline InputRun RunOf(const Request& request, size_t input) {
  const Forecast& forecast = request.forecast;
  InputRun run(request.work.inputs[input]);
  run.samples = std::min(run.samples, forecast.samples);
  if (forecast.cap > 0.0) {
    const uint64_t pairs = forecast.caps.inputs[input].pairs;
    run.max_edges = std::min(run.max_edges, forecast.caps.EdgesAt(forecast.cap, pairs));
  }
  return run;
}

// CANCELLED or DEADLINE_EXCEEDED for a request that nobody waits for any more; OK for the others.
inline absl::Status CancelledOrExpired(const std::stop_token& stopping, Time deadline, Time now) {
  const bool cancelled = stopping.stop_requested();
  // A client cancels when its own clock reaches the deadline, which may be a moment before this one does.
  const Time expiry = cancelled && deadline != Time::max() ? deadline - std::chrono::milliseconds(5) : deadline;
  if (now >= expiry) return absl::DeadlineExceededError("the deadline has passed");
  if (cancelled) return absl::CancelledError("the client cancelled the request");
  return absl::OkStatus();
}
inline absl::Status CancelledOrExpired(const Request& request, Time now) {
  return CancelledOrExpired(request.ticket.stopping, request.ticket.deadline, now);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_REQUEST_REQUEST_H_
