#include "server/oip/routes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "http/bodies.pb.h"
#include "server/http/json_in.h"
#include "server/http/json_message.h"
#include "server/http/json_out.h"
#include "server/oip/admit.h"
#include "server/oip/describe.h"
#include "server/oip/json.h"

namespace edgewise::server {
namespace {

using ExchangePtr = std::shared_ptr<Exchange>;

// The model and the version that the path names.
std::string NameIn(const Exchange& exchange) {
  return exchange.request.arguments.empty() ? "" : exchange.request.arguments[0];
}
std::string VersionIn(const Exchange& exchange) {
  return exchange.request.arguments.size() < 2 ? "" : exchange.request.arguments[1];
}

template <typename Response>
void Tell(const ExchangePtr& exchange, const absl::StatusOr<Response>& response) {
  if (!response.ok()) return exchange->Refuse(response.status());
  JsonOut json(*exchange);
  WriteMessage(*response, JsonDialect::kPlain, json);
  exchange->AnswerJson(json);
}

void TellReady(CallParts& parts, const ExchangePtr& exchange) {
  const std::string name = NameIn(*exchange);
  const auto ready = DescribeReady(parts.repository, name, VersionIn(*exchange));
  if (!ready.ok()) return exchange->Refuse(ready.status());
  JsonOut json;
  json.BeginObject().Key("name").String(name).Key("ready").Bool(ready->ready()).EndObject();
  exchange->Answer({.code = ready->ready() ? 200 : 503, .body = json.Take()});
}

void TellModel(CallParts& parts, const ExchangePtr& exchange) {
  Tell(exchange, DescribeModel(parts.repository, NameIn(*exchange), VersionIn(*exchange)));
}

void TellConfig(CallParts& parts, const ExchangePtr& exchange) {
  const auto response = DescribeConfig(parts.repository, parts.options, NameIn(*exchange), VersionIn(*exchange));
  response.ok() ? Tell<inference::ModelConfig>(exchange, response->config()) : exchange->Refuse(response.status());
}

void TellStatistics(CallParts& parts, const ExchangePtr& exchange) {
  Tell(exchange, DescribeStatistics(parts.repository, NameIn(*exchange), VersionIn(*exchange)));
}

void TellIndex(CallParts& parts, const ExchangePtr& exchange) {
  http::OipIndex body;
  if (!exchange->request.body.empty()) {
    const absl::Status status = ReadJson(exchange->request.body, JsonDialect::kPlain, body, exchange->body_memory);
    if (!status.ok()) return exchange->Refuse(status);
  }
  JsonOut json(*exchange);
  json.BeginArray();
  const inference::RepositoryIndexResponse index = DescribeRepository(parts.repository, body.ready());
  for (const auto& model : index.models()) WriteMessage(model, JsonDialect::kPlain, json);
  json.EndArray();
  exchange->AnswerJson(json);
}

// A call of infer, until its answer.
struct Inference {
  InferBody body;
  InferCall call;
  v1::PredictResponse response;
};

absl::Status Read(CallParts& parts, Exchange& exchange, const Ticket& ticket, Inference& inference) {
  const HttpRequest& request = exchange.request;
  inference::ModelInferRequest& message = inference.body.message;
  absl::Status status = ReadInferBody(request.body, request.json_length, exchange.body_memory, inference.body);
  if (status.ok() && !message.model_name().empty() && message.model_name() != NameIn(exchange)) {
    status = FieldError("model_name", absl::StrCat("is ", Quoted(message.model_name()), "; the path names another"));
  }
  const std::string version = VersionIn(exchange), &in_body = message.model_version();
  if (status.ok() && !version.empty() && !in_body.empty() && in_body != version) {
    status = FieldError("model_version", absl::StrCat("is ", Quoted(in_body), "; the path names another"));
  }
  message.set_model_name(NameIn(exchange));
  if (!version.empty()) message.set_model_version(version);
  if (!status.ok()) {
    parts.handler.Name(exchange.call, message.model_name());
    return status;
  }
  status = AdmitInfer(parts, message, inference.body.tensors, ticket, exchange.body_memory, inference.call);
  if (message.id().empty()) inference.call.request.set_request_id(request.id);
  return status;
}

void Infer(CallParts& parts, const ExchangePtr& exchange) {
  auto inference = std::make_shared<Inference>();
  Ticket ticket = TicketOf(*exchange, Rpc::kPredict, exchange->memory);
  const absl::Status status = Read(parts, *exchange, ticket, *inference);
  if (!status.ok()) return exchange->Refuse(status);
  ticket.deadline = inference->call.DeadlineOf(exchange->call.arrival, exchange->deadline);
  ticket.response = &inference->response;
  ticket.reply = [exchange, inference, most = parts.options.limits.max_response_bytes](absl::Status end) {
    inference::ModelInferResponse answer;
    if (end.ok()) end = WriteInfer(inference->call, inference->response, most, exchange->memory, answer);
    if (end.ok()) end = exchange->ExpectJson(answer.ByteSizeLong());
    if (!end.ok()) return exchange->Refuse(inference->call.Named(end));
    absl::StatusOr<HttpAnswer> written = WriteInferAnswer(inference->body, answer, *exchange);
    written.ok() ? exchange->Answer(*std::move(written)) : exchange->Refuse(written.status());
  };
  // The inputs of the body end here; how its outputs are to be written stays.
  inference->body.tensors.clear();
  inference->body.message.clear_inputs();
  inference->body.message.clear_parameters();
  exchange->request.body = std::string();
  const v1::PredictRequest request = std::move(inference->call.request);
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  parts.handler.Start(request, std::move(ticket));
}

}  // namespace

void AddOpenInferenceRoutes(Routes& routes, CallParts& parts) {
  routes.AddApi("/v2", PlainError);
  for (const char* verb : {":predict", ":explain"}) {
    routes.AddHint(verb, "version 1 of KServe's protocol is not served: POST to /v2/models/NAME/infer");
  }
  for (const char* memory : {"/v2/systemsharedmemory", "/v2/cudasharedmemory"}) {
    routes.AddRefusal(memory, "shared memory is not served: send tensors in the body");
  }
  routes.AddRefusal("/v2/repository/models/{}",
                    "models are not loaded or unloaded by calls: the server follows its repository "
                    "(--repository_mode)");
  for (const char* trace : {"/v2/trace", "/v2/models/{}/trace"}) {
    routes.AddRefusal(trace, "traces are not served; /metrics and the log tell of calls");
  }
  routes.AddRefusal("/v2/logging", "the log is set when the server starts");
  const auto add = [&](const char* method, const char* path, void (*serve)(CallParts&, const ExchangePtr&)) {
    const bool infers = serve == Infer, probes = serve == TellReady;
    // The answer grows with the models.
    const bool grows = serve == TellModel || serve == TellConfig || serve == TellStatistics || serve == TellIndex;
    routes.Add({.method = method,
                .path = path,
                .error = PlainError,
                .quiet = probes,
                .apart = grows,
                .binary = std::string_view(method) == "POST",
                .rpc = infers ? std::optional(Rpc::kPredict) : std::nullopt,
                .serve = [&parts, serve](const ExchangePtr& exchange) { serve(parts, exchange); }});
  };
  add("GET", "/v2", [](CallParts&, const ExchangePtr& exchange) {
    Tell<inference::ServerMetadataResponse>(exchange, DescribeServer());
  });
  add("POST", "/v2/repository/index", TellIndex);
  add("GET", "/v2/models/stats", TellStatistics);
  add("GET", "/v2/models/{}", TellModel);
  add("GET", "/v2/models/{}/versions/{}", TellModel);
  add("GET", "/v2/models/{}/ready", TellReady);
  add("GET", "/v2/models/{}/versions/{}/ready", TellReady);
  add("GET", "/v2/models/{}/config", TellConfig);
  add("GET", "/v2/models/{}/versions/{}/config", TellConfig);
  add("GET", "/v2/models/{}/stats", TellStatistics);
  add("GET", "/v2/models/{}/versions/{}/stats", TellStatistics);
  add("POST", "/v2/models/{}/infer", Infer);
  add("POST", "/v2/models/{}/versions/{}/infer", Infer);
}

}  // namespace edgewise::server
