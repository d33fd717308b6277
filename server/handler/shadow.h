// A share of the answered Predict requests is computed again under another profile of the model, and the answers are
// compared (docs/pressure.md). Nobody waits for that: it runs while the device has nothing else to do, is dropped where
// memory or time is short, and appears in no log and no metric but its own.
#ifndef EDGEWISE_SERVER_HANDLER_SHADOW_H_
#define EDGEWISE_SERVER_HANDLER_SHADOW_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "model/forward/result.h"
#include "server/base/memory.h"
#include "server/base/options.h"
#include "server/observe/metrics.h"
#include "server/request/request.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

// The second computation of one request (Request::shadow).
struct Shadow {
  RequestPtr request;                             // until it is queued; null: it cannot be computed
  ShadowResult refused = ShadowResult::kDropped;  // where it cannot
  MemoryHold part, whole;                         // of Shadows::part_ and of the memory for calls
  std::vector<InputResult> answer;                // of the first computation: probabilities and labels alone
};

// Any thread; no method blocks.
class Shadows {
 public:
  // All must outlive this and the requests.
  Shadows(const ServerOptions& options, MemoryLedger& memory, RequestQueue& queue)
      : options_(options), memory_(memory), queue_(queue) {}

  // Gives a checked request its shadow where it belongs to the share of `config`, that of its model. `message`: of the
  // request. The choice depends on the request's seed, id and inputs alone.
  void Prepare(const v1::PredictRequest& message, const ShadowConfig& config, Request& request);
  // A request with a shadow was answered. Its results are taken.
  void Start(Request& answered);

 private:
  absl::Status Hold(Shadow& shadow, uint64_t bytes);
  void End(const Shadow& shadow, const Request& request, const absl::Status& status);

  const ServerOptions& options_;
  MemoryLedger& memory_;
  RequestQueue& queue_;
  MemoryLedger part_{0};  // the part of `memory_` that shadows may hold
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_SHADOW_H_
