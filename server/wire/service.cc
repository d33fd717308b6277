#include "server/wire/service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "edgewise/v1/inference.pb.h"
#include "server/wire/generate_stream.h"
#include "server/wire/message.h"
#include "server/wire/model_list.h"
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

class ListModelsReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Serve() override {
    ParsedMessage<v1::ListModelsRequest> message;
    if (!Take(*message)) return;
    v1::ListModelsResponse response;
    FillModels(context_, response);
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
    v1::GetModelResponse response;
    const absl::Status status = FillModel(context_, (*message).model(), (*message).version(), response);
    status.ok() ? Answer(response) : End(status);
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
