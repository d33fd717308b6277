#include "server/wire/service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "edgewise/v1/inference.pb.h"
#include "server/handler/respond.h"
#include "server/wire/generate_stream.h"
#include "server/wire/message.h"
#include "server/wire/stream.h"
#include "server/wire/unary.h"

namespace edgewise::server {
namespace {

class PredictReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Serve() override {
    ParsedMessage<v1::PredictRequest> message;
    if (!Take(*message)) return;
    Ticket ticket = {.deadline = deadline(),
                     .stopping = cancelled_.get_token(),
                     .principal = principal_,
                     .reply = [this](const absl::Status& status) { Reply(status); },
                     .response = response_.get(),
                     .memory = &memory_,
                     .apart = apart(),
                     .alone = alone(),
                     .arrival = arrival()};
    context_.handler.Start(*message, std::move(ticket));  // the answer may come before the return
  }

  void Reply(const absl::Status& status) {
    const std::unique_ptr<v1::PredictResponse> response = std::move(response_);
    status.ok() ? Answer(*response) : End(status);
  }

  std::unique_ptr<v1::PredictResponse> response_ = std::make_unique<v1::PredictResponse>();
};

void FillInfo(const RpcContext& context, const ModelStatus& status, bool vocabulary, v1::ModelInfo& info) {
  FillModelInfo(status, vocabulary, info);
  info.set_max_message_bytes(context.message_limit());
}

class ListModelsReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Serve() override {
    ParsedMessage<v1::ListModelsRequest> message;
    if (!Take(*message)) return;
    v1::ListModelsResponse response;
    for (const ModelStatus& status : context_.repository.List()) {
      FillInfo(context_, status, false, *response.add_models());
    }
    Answer(response);
  }
};

class GetModelReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Serve() override {
    ParsedMessage<v1::GetModelRequest> message;
    if (!Take(*message)) return;
    const v1::GetModelRequest& request = *message;
    // In any state: the version asked for, else the highest that serves, else the highest.
    const std::vector<ModelStatus> list = context_.repository.List();
    const ModelStatus* found = nullptr;
    for (const ModelStatus& candidate : list) {
      if (candidate.name != request.model()) continue;
      if (request.version() != 0 && candidate.version != request.version()) continue;
      if (!found || candidate.loaded || !found->loaded) found = &candidate;
    }
    if (!found) {
      const absl::Status status = context_.repository.Resolve(request.model(), request.version()).status;
      return End(status.ok() ? absl::UnavailableError("the repository is changing") : status);
    }
    v1::GetModelResponse response;
    FillInfo(context_, *found, true, *response.mutable_model());
    Answer(response);
  }
};

}  // namespace

InferenceServiceImpl::InferenceServiceImpl(RpcContext& context) {
  Add("/edgewise.v1.InferenceService/Predict",
      [&context](RawCall& call) { return Started(new PredictReactor(context, call, Rpc::kPredict)); });
  Add("/edgewise.v1.InferenceService/PredictStream",
      [&context](RawCall& call) { return new StreamReactor(context, call); });
  Add("/edgewise.v1.InferenceService/Generate",
      [&context](RawCall& call) { return Started(new GenerateReactor(context, call)); });
  Add("/edgewise.v1.InferenceService/ListModels",
      [&context](RawCall& call) { return Started(new ListModelsReactor(context, call, Rpc::kListModels)); });
  Add("/edgewise.v1.InferenceService/GetModel",
      [&context](RawCall& call) { return Started(new GetModelReactor(context, call, Rpc::kGetModel)); });
}

}  // namespace edgewise::server
