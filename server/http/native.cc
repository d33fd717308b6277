#include "server/http/native.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "edgewise/v1/inference.pb.h"
#include "server/http/json_in.h"
#include "server/http/json_message.h"
#include "server/http/json_out.h"
#include "server/http/openai.h"
#include "server/models/repository.h"
#include "server/wire/model_list.h"

namespace edgewise::server {
namespace {

// {"code", "status", "message", "field"}: those of gRPC.
std::string NativeError(const absl::Status& status, int) {
  JsonOut json;
  json.BeginObject().Key("code").Integer(static_cast<int>(status.code()));
  json.Key("status").String(absl::StatusCodeToString(status.code()));
  json.Key("message").String(std::string(status.message()));
  if (const std::string field = FieldOf(status); !field.empty()) json.Key("field").String(field);
  json.EndObject();
  return json.Take();
}

void AnswerMessage(Exchange& exchange, absl::Status status, const google::protobuf::Message& message) {
  if (status.ok()) status = exchange.ExpectJson(message.ByteSizeLong());
  if (!status.ok()) return exchange.Refuse(status);
  JsonOut json(exchange);
  WriteMessage(message, JsonDialect::kProtobuf, json);
  exchange.AnswerJson(json);
}

// The message of the body; empty where it was refused.
template <typename Message>
std::unique_ptr<Message> Read(const CallParts& parts, Exchange& exchange) {
  auto message = std::make_unique<Message>();
  const absl::Status status =
      ReadJson(exchange.request.body, JsonDialect::kProtobuf, *message, exchange.body_memory, parts.options.limits);
  exchange.request.body = std::string();
  if (status.ok()) {
    if (message->request_id().empty()) message->set_request_id(exchange.request.id);
    return message;
  }
  exchange.Refuse(status);
  return nullptr;
}

void Predict(CallParts& parts, const std::shared_ptr<Exchange>& exchange) {
  const std::unique_ptr<v1::PredictRequest> message = Read<v1::PredictRequest>(parts, *exchange);
  if (!message) return;
  auto response = std::make_shared<v1::PredictResponse>();
  Ticket ticket = TicketOf(*exchange, Rpc::kPredict, exchange->memory);
  ticket.response = response.get();
  ticket.reply = [exchange, response](const absl::Status& status) { AnswerMessage(*exchange, status, *response); };
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  parts.handler.Start(*message, std::move(ticket));
}

// Each token is an event; an error after the first one is an event of its own.
class Events final : public TokenStream, public std::enable_shared_from_this<Events> {
 public:
  explicit Events(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  void Start(CallParts& parts, const v1::GenerateRequest& message) {
    Ticket ticket = TicketOf(*exchange_, Rpc::kGenerate, exchange_->memory);
    ticket.stream = this;
    ticket.line = parts.handler.NewLine(ticket.principal);
    ticket.reply = [self = shared_from_this()](const absl::Status& status) { self->End(status); };
    parts.handler.Start(message, std::move(ticket));
  }

 private:
  bool ready() const override { return !exchange_->full(); }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override {
    Begin();
    JsonOut json;
    WriteMessage(*message, JsonDialect::kProtobuf, json);
    exchange_->Send(absl::StrCat("data: ", json.text(), "\n\n"));
  }
  void End(const absl::Status& status) {
    if (!status.ok() && !began_) return exchange_->Refuse(status);
    Begin();
    if (!status.ok()) exchange_->Send(absl::StrCat("event: error\ndata: ", NativeError(status, 0), "\n\n"));
    exchange_->End(status);
  }
  void Begin() {
    if (!std::exchange(began_, true)) exchange_->Begin("text/event-stream");
  }

  const std::shared_ptr<Exchange> exchange_;
  bool began_ = false;
};

void Generate(CallParts& parts, const std::shared_ptr<Exchange>& exchange) {
  const std::unique_ptr<v1::GenerateRequest> message = Read<v1::GenerateRequest>(parts, *exchange);
  if (!message) return;
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  std::make_shared<Events>(exchange)->Start(parts, *message);
}

void AnswerModels(CallParts& parts, const std::shared_ptr<Exchange>& exchange) {
  v1::ListModelsResponse response;
  FillModels(parts, response);
  AnswerMessage(*exchange, absl::OkStatus(), response);
}

void AnswerModel(CallParts& parts, const std::shared_ptr<Exchange>& exchange) {
  const absl::StatusOr<ModelName> name = ParseModelName(exchange->request.arguments[0]);
  v1::GetModelResponse response;
  const absl::Status status = name.ok() ? FillModel(parts, name->name, name->version, response) : name.status();
  AnswerMessage(*exchange, status, response);
}

}  // namespace

void AddNativeRoutes(Routes& routes, CallParts& parts) {
  struct Entry {
    const char *method, *path;
    std::optional<Rpc> rpc;
    const google::protobuf::Descriptor* body;
    const char* answer;
    void (*serve)(CallParts& parts, const std::shared_ptr<Exchange>& exchange);
  };
  const Entry entries[] = {
      {"GET", "/edgewise/v1/models", {}, nullptr, R"("edgewise.v1.ListModelsResponse")", AnswerModels},
      {"GET", "/edgewise/v1/models/{}", {}, nullptr, R"("edgewise.v1.GetModelResponse")", AnswerModel},
      {"POST", "/edgewise/v1/predict", Rpc::kPredict, v1::PredictRequest::descriptor(),
       R"("edgewise.v1.PredictResponse")", Predict},
      {"POST", "/edgewise/v1/generate", Rpc::kGenerate, v1::GenerateRequest::descriptor(), R"("text/event-stream")",
       Generate}};
  for (const Entry& entry : entries) {
    routes.Add({.method = entry.method,
                .path = entry.path,
                .error = NativeError,
                .apart = std::string_view(entry.method) == "GET",  // the answer grows with the models
                .rpc = entry.rpc,
                .body = entry.body,
                .answer = entry.answer,
                .serve = [&parts, serve = entry.serve](const std::shared_ptr<Exchange>& exchange) {
                  serve(parts, exchange);
                }});
  }
  routes.AddApi("/edgewise/", NativeError);
}

}  // namespace edgewise::server
