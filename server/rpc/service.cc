#include "server/rpc/service.h"

#include <atomic>
#include <stop_token>
#include <utility>

#include "server/calls/respond.h"
#include "server/rpc/generate_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/stream.h"

namespace edgewise::server {
namespace {

// One Predict call. Deletes itself when the call is over.
class PredictReactor final : public grpc::ServerUnaryReactor {
 public:
  // Counts in `open` until the answer is out. A drain waits for that, so what it refuses does not count.
  PredictReactor(Calls& calls, Predictor& predictor, Metrics& metrics, std::atomic<int64_t>& open,
                 grpc::CallbackServerContext* context, const v1::PredictRequest& request, v1::PredictResponse* response)
      : open_(calls.draining() ? nullptr : &open) {
    if (open_) open_->fetch_add(1);
    predictor.Predict(request, ToSteady(context->deadline(), calls.now()), cancelled_.get_token(), response,
                      [this, &metrics](const absl::Status& status) {
                        metrics.CountRpc(Rpc::kPredict, status.code());
                        Finish(ToGrpc(status));
                      });
  }

  void OnCancel() override { cancelled_.request_stop(); }
  void OnDone() override {
    if (open_) open_->fetch_sub(1);
    delete this;
  }

 private:
  std::atomic<int64_t>* const open_;
  std::stop_source cancelled_;
};

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::Predict(grpc::CallbackServerContext* context,
                                                        const v1::PredictRequest* request,
                                                        v1::PredictResponse* response) {
  return new PredictReactor(calls_, predictor_, metrics_, open_calls_, context, *request, response);
}

grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse>* InferenceServiceImpl::PredictStream(
    grpc::CallbackServerContext* context) {
  return new StreamReactor(*this, context);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceServiceImpl::Generate(grpc::CallbackServerContext* context,
                                                                               const v1::GenerateRequest* request) {
  return new GenerateReactor(*this, context, *request);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ListModels(grpc::CallbackServerContext* context,
                                                           const v1::ListModelsRequest*,
                                                           v1::ListModelsResponse* response) {
  for (const ModelStatus& status : repository_.List()) FillModelInfo(status, false, *response->add_models());
  metrics_.CountRpc(Rpc::kListModels, absl::StatusCode::kOk);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::GetModel(grpc::CallbackServerContext* context,
                                                         const v1::GetModelRequest* request,
                                                         v1::GetModelResponse* response) {
  absl::Status status = CheckModelName(request->model());
  if (status.ok()) status = CheckVersion(request->version());
  if (status.ok()) {
    // Whatever its state: the version asked for, else the highest that serves, else the highest.
    std::vector<ModelStatus> list = repository_.List();
    const ModelStatus* found = nullptr;
    for (const ModelStatus& candidate : list) {
      if (candidate.name != request->model()) continue;
      if (request->version() != 0 && candidate.version != request->version()) continue;
      if (!found || candidate.loaded || !found->loaded) found = &candidate;
    }
    if (found) {
      FillModelInfo(*found, true, *response->mutable_model());
    } else {
      status = repository_.Resolve(request->model(), request->version()).status;
      if (status.ok()) status = absl::UnavailableError("the repository is changing");
    }
  }
  metrics_.CountRpc(Rpc::kGetModel, status.code());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

void InferenceServiceImpl::DrainStreams() {
  const absl::MutexLock lock(&streams_mutex_);
  for (StreamReactor* stream : streams_) stream->Drain();
}

int64_t InferenceServiceImpl::open_streams() {
  const absl::MutexLock lock(&streams_mutex_);
  return static_cast<int64_t>(streams_.size());
}

}  // namespace edgewise::server
