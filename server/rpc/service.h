// InferenceService on gRPC's callback API. Handlers never block; answers are sent from the engine's thread.
#ifndef EDGEWISE_SERVER_RPC_SERVICE_H_
#define EDGEWISE_SERVER_RPC_SERVICE_H_

#include "edgewise/v1/inference.grpc.pb.h"
#include "server/rpc/context.h"

namespace edgewise::server {

class InferenceServiceImpl final : public v1::InferenceService::CallbackService {
 public:
  // `context` must outlive the service.
  explicit InferenceServiceImpl(RpcContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Predict(grpc::CallbackServerContext* call, const v1::PredictRequest* request,
                                    v1::PredictResponse* response) override;
  grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse>* PredictStream(
      grpc::CallbackServerContext* call) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* call,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  RpcContext& context_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_SERVICE_H_
