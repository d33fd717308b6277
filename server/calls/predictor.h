// One PredictRequest, from message to message: find the model, check, queue, answer, count, log. Knows no RPC library;
// service.h puts gRPC around it.
#ifndef EDGEWISE_SERVER_CALLS_PREDICTOR_H_
#define EDGEWISE_SERVER_CALLS_PREDICTOR_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/calls/calls.h"
#include "server/options.h"
#include "server/validate/validate.h"

namespace edgewise::server {

// Called exactly once, on any thread; must not block.
using PredictDone = std::function<void(absl::Status)>;

// All methods may be called from any thread; none blocks.
class Predictor {
 public:
  // Both must outlive the predictor and every request in flight.
  Predictor(const ServerOptions& options, Calls& calls) : options_(options), calls_(calls) {}

  // Answers `request`, which is not used after the return. `response` is filled when `done` gets OK, perhaps before the
  // return. A stop may be asked for at any time.
  void Predict(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
               v1::PredictResponse* response, PredictDone done);

 private:
  struct PredictCall : Call {
    OutputSelection outputs;
    v1::PredictResponse* response = nullptr;
    PredictDone done;
  };

  void Start(const v1::PredictRequest& request, Time deadline, std::stop_token stopping,
             std::shared_ptr<PredictCall> call);
  void Finish(PredictCall& call, TaskResult result);
  // Counts, then tells. Finish counts more in between.
  void End(PredictCall& call, const absl::Status& status, Rejection invalid_as = Rejection::kInvalid);
  void Count(PredictCall& call, const absl::Status& status, Rejection invalid_as);
  void Tell(PredictCall& call, const absl::Status& status);
  void FillResponse(const PredictCall& call, const TaskResult& result, v1::PredictResponse& response);

  const ServerOptions& options_;
  Calls& calls_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_CALLS_PREDICTOR_H_
