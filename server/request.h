// A request from its arrival to its answer. The RPC makes it, the checks fill it, the queue and the engine own it in
// turn. Its end is counted, logged and told in one place (calls/handler.h).
#ifndef EDGEWISE_SERVER_REQUEST_H_
#define EDGEWISE_SERVER_REQUEST_H_

#include <prometheus/gauge.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/civil_time.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "server/cost_model.h"
#include "server/memory.h"

namespace edgewise::v1 {
class GenerateResponse;
class PredictResponse;
class Settings;
}  // namespace edgewise::v1

namespace edgewise::server {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct LoadedModel;
class ModelMetrics;
struct Shadow;

enum class Rpc { kPredict, kPredictStream, kGenerate, kListModels, kGetModel };
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

  bool operator==(const OutputSelection&) const = default;
};

// Why an answer has less than was asked for: its own deadline, or requests that wait behind it.
enum class DegradedBy { kNothing, kDeadline, kLoad };

// The caps that an answer may get, lower than the one that was asked for. A cap is one number for all inputs.
struct CapRange {
  struct Input {
    uint64_t pairs = 0;
    double edges = 0.0;  // of one sample, as expected with the cap that was asked for
  };
  bool by_density = true;          // a cap is a share of an input's pairs (Budget.max_density), else a number of edges
  double most = 0.0, least = 0.0;  // at `most` no input is expected to have fewer edges
  std::vector<Input> inputs;       // empty: the cap stays as it is
};

// Whether an answer may have less than was asked for, and what became of it (schedule/degrade.h).
struct Consent {
  bool given = false;
  bool fit = false;      // asked for as much as the deadline allows
  uint32_t asked = 1;    // samples
  uint32_t samples = 1;  // so far
  double cap = 0.0;      // so far, of `caps`; 0: the one that was asked for
  DegradedBy reason = DegradedBy::kNothing;
  Demand one;                  // of one sample with the cap so far, as expected
  double one_seconds = 0.0;    // predicted for it
  double least_seconds = 0.0;  // and for one with the lowest cap
  CapRange caps;
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

// The part that Generate requests alone have. The engine calls the functions, before Request::done; they must not
// block.
struct GenerationWork {
  ModelSequence prompt;
  GenerationOptions options;
  CacheBytes cache_bytes;       // before it starts
  std::function<bool()> ready;  // whether the client takes a token now: TokenStream::ready
  // Every token, in order. Any reason but kNone: it is the last.
  std::function<void(const GeneratedToken&, FinishReason)> token;

  // So far.
  uint32_t truncated_tokens = 0;  // of the prompt
  uint32_t sent = 0;              // tokens
  Time last_sent;                 // or the arrival
  double utilization = -1.0;      // edges of the most expensive row over its cap; < 0: no budget
  bool capped = false;
};

struct Request {
  // The RPC. `reply` is called exactly once, on any thread, and must not block. `response` is filled before an OK.
  Rpc rpc = Rpc::kPredict;  // for streams too; or kGenerate
  Time deadline = Time::max();
  // Requested by gRPC when the client cancels or disconnects; by nothing else. In the background: LoadedModel::leaving.
  std::stop_token stopping;
  Principal principal;
  std::function<void(const absl::Status&)> reply;
  v1::PredictResponse* response = nullptr;  // of Predict
  TokenStream* stream = nullptr;            // of Generate; lives until `reply`
  // The RPC holds it until its last message is sent. Admission makes it hold what the request takes from then on.
  MemoryHold* memory = nullptr;
  // Its message is long and is prepared on a thread for such (calls/preparation_threads.h).
  bool apart = false;

  // Admission.
  Time arrival;  // the RPC may set it, for a message that waited to be checked
  std::string id;
  std::string model_name;                    // as the message says
  std::shared_ptr<ModelMetrics> metrics;     // of the version asked for, or `_other`
  std::shared_ptr<const LoadedModel> model;  // once admitted
  std::optional<std::string> profile;        // instead of the message's
  absl::CivilSecond local_time;              // of messages, for their chat template (ServerOptions::local_time)

  // The checked message.
  uint32_t priority = kDefaultPriority;    // 1..kPriorityLevels
  uint64_t seed = 0;                       // drawn where the message has none
  std::shared_ptr<v1::Settings> settings;  // as the answer reports them
  BudgetKind budget = BudgetKind::kNone;
  OutputSelection outputs;
  std::vector<ModelInput> inputs;              // of Predict
  std::unique_ptr<GenerationWork> generation;  // of Generate
  uint64_t tokens = 0;                         // valid tokens of all inputs, one sample
  uint64_t held_bytes = 0;                     // of the inputs, results and answer, at most
  uint64_t cost = 0;  // for the queue's limit: positions, pads included, entries of biases and edges of given graphs

  // Nobody waits for it: it runs while nothing else does, and is not in the metrics of requests.
  bool background = false;
  std::shared_ptr<Shadow> shadow;  // its second computation, in the background (calls/shadow.h); null: none

  Consent consent;
  Demand demand;                   // of Predict, as expected
  double predicted_seconds = 0.0;  // alone on the device; 0: nothing is known of the model yet

  // From the queue to the end.
  struct Gauges {
    GaugeHold in_flight, queued, queued_tokens, queued_seconds, generating;
  } gauges;
  Time queued;  // Time(): never
  double queue_seconds = 0.0;
  double compute_seconds = 0.0;
  double cancelled_seconds = 0.0;  // the part of compute_seconds that was wasted: the request was cancelled or expired
  uint32_t batch_inputs = 0;       // of the batch; for a generation: how many run side by side
  uint64_t batch_tokens = 0;       // valid tokens of the batch
  std::vector<InputResult> results;  // one per input, when OK
  double edges = 0.0, pairs = 0.0;   // mean per sample, summed over inputs or generated rows

  // From an OK of RequestQueue::Push on called exactly once, by the owner, on any thread; it must not block.
  std::function<void(const absl::Status&)> done;
};

using RequestPtr = std::unique_ptr<Request>;

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
  return CancelledOrExpired(request.stopping, request.deadline, now);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_REQUEST_H_
