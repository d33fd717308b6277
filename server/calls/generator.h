// Answers GenerateRequests: admit, check, queue, send every token, count, log. Knows no RPC library; rpc/ puts gRPC
// around it.
#ifndef EDGEWISE_SERVER_CALLS_GENERATOR_H_
#define EDGEWISE_SERVER_CALLS_GENERATOR_H_

#include <memory>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/calls/calls.h"
#include "server/options.h"
#include "server/validate/generate.h"

namespace edgewise::server {

// Receives the messages of one generation. Used by one thread at a time; no method may block.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  // Whether the stream takes another message now. Calls::Wake when that becomes true.
  virtual bool ready() const = 0;
  virtual void Send(std::unique_ptr<v1::GenerateResponse> message) = 0;
  // The last call, exactly once.
  virtual void End(const absl::Status& status) = 0;
};

// All methods may be called from any thread; none blocks.
class Generator {
 public:
  // Both must outlive the generator and every request in flight.
  Generator(const ServerOptions& options, Calls& calls) : options_(options), calls_(calls) {}

  // Answers `request`, which is not used after the return. `stream` must live until its End(), which may come before
  // the return. `stopping` may be requested at any time.
  void Generate(const v1::GenerateRequest& request, Time deadline, std::stop_token stopping, TokenStream* stream);

 private:
  struct GenerateCall : Call {
    GenerateCall() : Call(Rpc::kGenerate) {}

    TokenStream* stream = nullptr;
    uint64_t prompt_tokens = 0;
    uint32_t samples = 1;
    uint32_t truncated_tokens = 0;
    Time last;  // time of the last token, or of the arrival
    uint32_t sent = 0;
    double edges = 0.0, pairs = 0.0;  // of the generated rows
    double utilization = -1.0;        // edges of the most expensive row over its cap; < 0: no budget
    bool capped = false;
    GenerationProgress progress;  // at the last token
  };

  absl::Status Start(const v1::GenerateRequest& request, const std::shared_ptr<GenerateCall>& call);
  void Send(GenerateCall& call, const GeneratedToken& token, const GenerationProgress& progress);
  void FillEnd(const GenerateCall& call, const GenerationProgress& progress, v1::GenerateResponse& message);
  void Finish(GenerateCall& call, TaskResult result);
  // The last step of every call: counted, then told.
  void Tell(GenerateCall& call, const absl::Status& status);

  const ServerOptions& options_;
  Calls& calls_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_CALLS_GENERATOR_H_
