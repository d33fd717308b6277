#include "server/wire/service.h"

#include <functional>
#include <memory>
#include <optional>
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
    Ticket ticket = NewTicket();
    ticket.response = response_.get();
    ticket.reply = [this](const absl::Status& status) {
      const std::unique_ptr<v1::PredictResponse> response = std::move(response_);
      status.ok() ? Answer(*response) : End(status);
    };
    ticket.alone = IsAlone(ticket);
    context_.handler.Start(*message, std::move(ticket));  // the answer may come before the return
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
    context_.handler.Name(record(), (*message).model(), (*message).version());
    const absl::Status status = FillModel(context_, (*message).model(), (*message).version(), response);
    status.ok() ? Answer(response) : End(status);
  }
};

template <typename Reactor>
auto Maker(RpcContext& context, Rpc rpc, std::optional<Rpc> infers = std::nullopt) {
  return [&context, rpc, infers](RawCall& call) { return std::make_unique<Reactor>(context, call, rpc, infers); };
}

}  // namespace

InferenceServiceImpl::InferenceServiceImpl(RpcContext& context) {
  Add("/edgewise.v1.InferenceService/Predict", Maker<PredictReactor>(context, Rpc::kPredict, Rpc::kPredict));
  Add("/edgewise.v1.InferenceService/PredictStream",
      [&context](RawCall& call) { return std::make_unique<StreamReactor>(context, call); });
  Add("/edgewise.v1.InferenceService/Generate", Maker<GenerateReactor>(context, Rpc::kGenerate, Rpc::kGenerate));
  Add("/edgewise.v1.InferenceService/ListModels", Maker<ListModelsReactor>(context, Rpc::kListModels));
  Add("/edgewise.v1.InferenceService/GetModel", Maker<GetModelReactor>(context, Rpc::kGetModel));
}

}  // namespace edgewise::server
