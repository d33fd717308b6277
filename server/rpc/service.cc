#include "server/rpc/service.h"

#include <memory>
#include <stop_token>

#include "server/calls/respond.h"
#include "server/rpc/generate_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/principal.h"
#include "server/rpc/stream.h"

namespace edgewise::server {
namespace {

// One Predict call. Deletes itself when the call is over.
class PredictReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit PredictReactor(RpcContext& context) : context_(context), open_(context.HoldCall()) {}

  // The answer may come before the return.
  void Start(const v1::PredictRequest& message, const grpc::CallbackServerContext& call,
             v1::PredictResponse* response) {
    const auto reply = [this](const absl::Status& status) {
      context_.metrics.CountRpc(Rpc::kPredict, status.code());
      Finish(ToGrpc(status));
    };
    context_.handler.Start(message, {.deadline = ToSteady(call.deadline(), context_.handler.now()),
                                     .stopping = cancelled_.get_token(),
                                     .principal = PrincipalOf(call, context_.tokens.get()),
                                     .reply = reply,
                                     .response = response});
  }

 private:
  void OnCancel() override { cancelled_.request_stop(); }
  void OnDone() override { delete this; }

  RpcContext& context_;
  const std::shared_ptr<void> open_;
  std::stop_source cancelled_;
};

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::Predict(grpc::CallbackServerContext* call,
                                                        const v1::PredictRequest* message,
                                                        v1::PredictResponse* response) {
  auto* reactor = new PredictReactor(context_);
  reactor->Start(*message, *call, response);
  return reactor;
}

grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse>* InferenceServiceImpl::PredictStream(
    grpc::CallbackServerContext* call) {
  return new StreamReactor(context_, call);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceServiceImpl::Generate(grpc::CallbackServerContext* call,
                                                                               const v1::GenerateRequest* message) {
  auto* reactor = new GenerateReactor(context_);
  reactor->Start(*message, *call);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ListModels(grpc::CallbackServerContext* call,
                                                           const v1::ListModelsRequest*,
                                                           v1::ListModelsResponse* response) {
  for (const ModelStatus& status : context_.repository.List()) FillModelInfo(status, false, *response->add_models());
  context_.metrics.CountRpc(Rpc::kListModels, absl::StatusCode::kOk);
  return Finished(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceServiceImpl::GetModel(grpc::CallbackServerContext* call,
                                                         const v1::GetModelRequest* request,
                                                         v1::GetModelResponse* response) {
  // In any state: the version asked for, else the highest that serves, else the highest.
  const std::vector<ModelStatus> list = context_.repository.List();
  const ModelStatus* found = nullptr;
  for (const ModelStatus& candidate : list) {
    if (candidate.name != request->model()) continue;
    if (request->version() != 0 && candidate.version != request->version()) continue;
    if (!found || candidate.loaded || !found->loaded) found = &candidate;
  }
  absl::Status status;
  if (found) {
    FillModelInfo(*found, true, *response->mutable_model());
  } else {
    status = context_.repository.Resolve(request->model(), request->version()).status;
    if (status.ok()) status = absl::UnavailableError("the repository is changing");
  }
  context_.metrics.CountRpc(Rpc::kGetModel, status.code());
  return Finished(call, status);
}

}  // namespace edgewise::server
