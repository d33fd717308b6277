// Answers PredictRequests: admit, check, queue, respond, count, log. Knows no RPC library; rpc/ puts gRPC around it.
#ifndef EDGEWISE_SERVER_CALLS_PREDICTOR_H_
#define EDGEWISE_SERVER_CALLS_PREDICTOR_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/calls/calls.h"
#include "server/options.h"
#include "server/validate/predict.h"

namespace edgewise::server {

// Called exactly once, on any thread; must not block.
using PredictDone = std::function<void(absl::Status)>;

// All methods may be called from any thread; none blocks.
class Predictor {
 public:
  // Both must outlive the predictor and every request in flight.
  Predictor(const ServerOptions& options, Calls& calls) : options_(options), calls_(calls) {}

  // Answers `request`, which is not used after the return. `response` is filled before `done` gets OK, perhaps before
  // the return. `stopping` may be requested at any time.
  void Predict(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
               v1::PredictResponse* response, PredictDone done);

 private:
  struct PredictCall : Call {
    PredictCall() : Call(Rpc::kPredict) {}

    OutputSelection outputs;
    v1::PredictResponse* response = nullptr;
    PredictDone done;
  };

  absl::Status Start(const v1::PredictRequest& request, const std::shared_ptr<PredictCall>& call);
  // On the engine's thread, or on that of the queue if the task never ran.
  void Finish(PredictCall& call, TaskResult result);
  // The last step of every call: counted, then told.
  void Tell(PredictCall& call, const absl::Status& status);
  void FillResponse(const PredictCall& call, const TaskResult& result);

  const ServerOptions& options_;
  Calls& calls_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_CALLS_PREDICTOR_H_
