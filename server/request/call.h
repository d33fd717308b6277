// A call of either front: a request of HTTP, an RPC, or a message of a PredictStream. observe/call_log.h counts and
// logs its end.
#ifndef EDGEWISE_SERVER_REQUEST_CALL_H_
#define EDGEWISE_SERVER_REQUEST_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/request/request.h"

namespace edgewise::server {

// The work of the answered requests of a call: one, or several if OpenAI's `n` asks for more.
struct CallWork {
  uint32_t requests = 0;
  bool generates = false;
  uint64_t inputs = 0, prompt_tokens = 0, generated_tokens = 0;
  uint32_t samples = 0;             // the most of a request
  double edges = 0.0, pairs = 0.0;  // mean per sample
  double queue_seconds = 0.0;       // the longest
  double compute_seconds = 0.0;
};

// The front that takes the call makes it, and sets the fields above `started` before anybody else sees the call.
struct Call {
  const char* name = "_other";  // the route of HTTP, or the path of the method of gRPC, as the server's table has it
  bool http = false;
  bool quiet = false;              // a probe, a scrape or a file of the page: logged only if it is refused
  std::optional<Rpc> rpc = {};     // of gRPC, for its counter
  std::optional<Rpc> infers = {};  // kPredict or kGenerate: counted as one if it ends before a request starts
  std::string peer;                // as gRPC names it
  Principal principal;
  std::string id;  // X-Request-Id; empty until it is known to be printable
  Time arrival;

  std::atomic<bool> started = false;  // RequestHandler counts it
  absl::Mutex mutex;
  std::string request_id ABSL_GUARDED_BY(mutex);                 // of the message, as `id`
  std::string model ABSL_GUARDED_BY(mutex);                      // empty unless the repository has it
  std::shared_ptr<ModelMetrics> metrics ABSL_GUARDED_BY(mutex);  // of the version asked for; null: `_other`
  int64_t version ABSL_GUARDED_BY(mutex) = 0;                    // that answered
  CallWork work ABSL_GUARDED_BY(mutex);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_REQUEST_CALL_H_
