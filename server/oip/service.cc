#include "server/oip/service.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "oip/v2/open_inference.pb.h"
#include "server/oip/admit.h"
#include "server/oip/describe.h"
#include "server/wire/unary.h"

namespace edgewise::server {
namespace {

class InferReactor final : public UnaryReactor {
 public:
  InferReactor(RpcContext& context, RawCall& call) : UnaryReactor(context, call, Rpc::kModelInfer, Rpc::kPredict) {}

 private:
  void Serve() override {
    ParsedMessage<inference::ModelInferRequest> message;
    if (!Take(*message)) return;
    Ticket ticket = NewTicket();
    const absl::Status status = AdmitInfer(context_, *message, TensorsOf(*message), ticket, message_memory_, infer_);
    if (!status.ok()) return End(status);
    ticket.deadline = infer_.DeadlineOf(context_.options.clock(), ticket.deadline);
    ticket.response = response_.get();
    ticket.reply = [this](const absl::Status& end) { Reply(end); };
    ticket.alone = IsAlone(ticket);
    const v1::PredictRequest request = std::move(infer_.request);  // the answer may come before the return
    context_.handler.Start(request, std::move(ticket));
  }

  void Reply(const absl::Status& status) {
    const std::unique_ptr<v1::PredictResponse> response = std::move(response_);
    if (!status.ok()) return End(infer_.Named(status));
    inference::ModelInferResponse answer;
    const absl::Status written =
        WriteInfer(infer_, *response, context_.options.limits.max_response_bytes, memory_, answer);
    written.ok() ? Answer(answer) : End(written);
  }

  InferCall infer_;
  std::unique_ptr<v1::PredictResponse> response_ = std::make_unique<v1::PredictResponse>();
};

// A probe is logged only if it is refused; an answer of models grows with them, and may be long.
enum Kind { kProbe, kShort, kOfModels };

// A method that tells what it finds.
template <typename Request, typename Response>
class TellReactor final : public UnaryReactor {
 public:
  using Tell = std::function<absl::StatusOr<Response>(const Request& request)>;
  TellReactor(RpcContext& context, RawCall& call, const Tell& tell, Kind kind)
      : UnaryReactor(context, call, Rpc::kOpenInference), tell_(tell) {
    apart_ = kind == kOfModels;
    record().quiet = kind == kProbe;
  }

 private:
  void Serve() override {
    ParsedMessage<Request> message;
    if (!Take(*message)) return;
    const absl::StatusOr<Response> response = tell_(*message);
    response.ok() ? Answer(*response) : End(response.status());
  }

  const Tell& tell_;  // of the service
};

template <typename Request, typename Response>
std::function<std::unique_ptr<RawReactor>(RawCall& call)> Telling(
    RpcContext& context, Kind kind, std::function<absl::StatusOr<Response>(const Request& request)> tell) {
  return [&context, kind, tell = std::move(tell)](RawCall& call) {
    return std::make_unique<TellReactor<Request, Response>>(context, call, tell, kind);
  };
}

// Methods of clients that are not served.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"ModelStreamInfer", "ModelStreamInfer is not served: use ModelInfer, or PredictStream of edgewise.v1"},
    {"RepositoryModel",
     "models are not loaded or unloaded by calls: the server follows its repository (--repository_mode)"},
    {"SystemSharedMemory", "shared memory is not served: send tensors in the message"},
    {"CudaSharedMemory", "shared memory is not served: send tensors in the message"},
    {"TraceSetting", "traces are not served; /metrics and the log tell of calls"},
    {"LogSettings", "the log is set when the server starts"}};

}  // namespace

std::string WhyNotServed(const std::string& method) {
  for (const auto& [name, why] : kRefused) {
    if (absl::StartsWith(method, absl::StrCat("/inference.GRPCInferenceService/", name))) return why;
  }
  return "the server has no such method";
}

OpenInferenceService::OpenInferenceService(RpcContext& context, std::function<bool()> ready) {
  const Repository& models = context.repository;
  const ServerOptions& options = context.options;
  Add("/inference.GRPCInferenceService/ServerLive",
      Telling<inference::ServerLiveRequest, inference::ServerLiveResponse>(context, kProbe, [](const auto&) {
        inference::ServerLiveResponse response;
        response.set_live(true);
        return response;
      }));
  Add("/inference.GRPCInferenceService/ServerReady",
      Telling<inference::ServerReadyRequest, inference::ServerReadyResponse>(context, kProbe,
                                                                             [ready = std::move(ready)](const auto&) {
                                                                               inference::ServerReadyResponse response;
                                                                               response.set_ready(ready());
                                                                               return response;
                                                                             }));
  Add("/inference.GRPCInferenceService/ModelReady",
      Telling<inference::ModelReadyRequest, inference::ModelReadyResponse>(
          context, kProbe,
          [&models](const auto& request) { return DescribeReady(models, request.name(), request.version()); }));
  Add("/inference.GRPCInferenceService/ServerMetadata",
      Telling<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
          context, kShort, [](const auto&) { return DescribeServer(); }));
  Add("/inference.GRPCInferenceService/ModelMetadata",
      Telling<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
          context, kOfModels,
          [&models](const auto& request) { return DescribeModel(models, request.name(), request.version()); }));
  Add("/inference.GRPCInferenceService/ModelInfer",
      [&context](RawCall& call) { return std::make_unique<InferReactor>(context, call); });
  Add("/inference.GRPCInferenceService/ModelConfig",
      Telling<inference::ModelConfigRequest, inference::ModelConfigResponse>(
          context, kOfModels, [&models, &options](const auto& request) {
            return DescribeConfig(models, options, request.name(), request.version());
          }));
  Add("/inference.GRPCInferenceService/ModelStatistics",
      Telling<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
          context, kOfModels,
          [&models](const auto& request) { return DescribeStatistics(models, request.name(), request.version()); }));
  Add("/inference.GRPCInferenceService/RepositoryIndex",
      Telling<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
          context, kOfModels, [&models](const auto& request) { return DescribeRepository(models, request.ready()); }));
}

}  // namespace edgewise::server
