// InferenceService on gRPC's callback API: messages in, messages out. Handlers never block; answers are sent from the
// engine's thread.
#ifndef EDGEWISE_SERVER_RPC_SERVICE_H_
#define EDGEWISE_SERVER_RPC_SERVICE_H_

#include <atomic>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.grpc.pb.h"
#include "server/calls/calls.h"
#include "server/calls/generator.h"
#include "server/calls/predictor.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"

namespace edgewise::server {

class GenerateReactor;
class StreamReactor;

class InferenceServiceImpl final : public v1::InferenceService::CallbackService {
 public:
  // All must outlive the service.
  InferenceServiceImpl(const ServerOptions& options, Calls& calls, Predictor& predictor, Generator& generator,
                       const Repository& repository, Metrics& metrics)
      : options_(options),
        calls_(calls),
        predictor_(predictor),
        generator_(generator),
        repository_(repository),
        metrics_(metrics) {}

  grpc::ServerUnaryReactor* Predict(grpc::CallbackServerContext* context, const v1::PredictRequest* request,
                                    v1::PredictResponse* response) override;
  grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse>* PredictStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

  // Ends the open streams when what they have in flight is answered. After Calls::Drain().
  void DrainStreams();
  int64_t open_streams();
  // Predict and Generate calls that began before the drain and whose answer is not out.
  int64_t open_calls() const { return open_calls_.load(); }

 private:
  friend class GenerateReactor;
  friend class StreamReactor;

  const ServerOptions& options_;
  Calls& calls_;
  Predictor& predictor_;
  Generator& generator_;
  const Repository& repository_;
  Metrics& metrics_;
  std::atomic<int64_t> open_calls_ = 0;
  absl::Mutex streams_mutex_;
  std::set<StreamReactor*> streams_ ABSL_GUARDED_BY(streams_mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_SERVICE_H_
