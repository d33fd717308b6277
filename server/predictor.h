// One PredictRequest, from message to message: find the model, check, queue, answer, count, log. Knows no RPC library;
// service.h puts gRPC around it.
#ifndef EDGEWISE_SERVER_PREDICTOR_H_
#define EDGEWISE_SERVER_PREDICTOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/queue.h"
#include "server/repository.h"
#include "server/validate.h"

namespace edgewise::server {

// Called exactly once, on any thread; must not block.
using PredictDone = std::function<void(absl::Status)>;

// All methods may be called from any thread; none blocks.
class Predictor {
 public:
  // All must outlive the predictor and every request in flight.
  Predictor(const ServerOptions& options, Repository& repository, TaskQueue& queue, Metrics& metrics)
      : options_(options), repository_(repository), queue_(queue), metrics_(metrics) {}

  // Answers `request`, which is not used after the return. `response` is filled when `done` gets OK, perhaps before the
  // return. `cancelled` may be set at any time.
  void Predict(const v1::PredictRequest& request, Time deadline, std::shared_ptr<const std::atomic<bool>> cancelled,
               v1::PredictResponse* response, PredictDone done);

  // Where a request counts: the version it asks for, the latest when that is no version; `_other` for what the
  // repository lacks.
  ModelMetrics& MetricsOf(const v1::PredictRequest& request) const;

  // From now on every request is UNAVAILABLE.
  void Drain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  // Requests accepted and not yet answered.
  int64_t in_flight() const { return in_flight_.load(); }

 private:
  // One request on its way.
  struct Call {
    Time arrival;
    std::string request_id;
    std::string model;  // as the request says
    ModelMetrics* metrics = nullptr;
    std::shared_ptr<const LoadedModel> loaded;
    OutputSelection outputs;
    uint64_t seed = 0;
    uint32_t priority = 0;
    uint64_t tokens = 0;
    v1::PredictResponse* response = nullptr;
    PredictDone done;
  };

  void Start(const v1::PredictRequest& request, Time deadline, std::shared_ptr<const std::atomic<bool>> cancelled,
             std::shared_ptr<Call> call);
  void Finish(Call& call, TaskResult result);
  void End(Call& call, const absl::Status& status, Rejection invalid_as = Rejection::kInvalid);
  void FillResponse(const Call& call, const TaskResult& result, v1::PredictResponse& response);

  const ServerOptions& options_;
  Repository& repository_;
  TaskQueue& queue_;
  Metrics& metrics_;
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> in_flight_ = 0;
  std::mutex limiter_mutex_;
  LogLimiter limiter_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_PREDICTOR_H_
