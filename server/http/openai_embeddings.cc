// /v1/embeddings.
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "server/http/json_in.h"
#include "server/http/openai.h"

namespace edgewise::server {
namespace {

static_assert(std::endian::native == std::endian::little, "embeddings in base64 are little-endian");

// Takes the inputs out of the body.
absl::StatusOr<v1::PredictRequest> ParseEmbeddings(http::OpenAiEmbeddings& body, const Repository& repository) {
  const std::string& format = body.encoding_format();
  REFUSE_IF(!format.empty() && format != "float" && format != "base64", "encoding_format", "is ", Quoted(format),
            "; allowed are float and base64");
  REFUSE_IF(body.input().parts_size() > 0, "input", "has objects; texts or token ids are expected");
  REFUSE_IF(body.has_dimensions() && body.dimensions() == 0, "dimensions", "is 0; allowed are 1 and more");
  ASSIGN_OR_RETURN(const ModelName model, ParseModelName(body.model()));
  if (const Resolved resolved = repository.Resolve(model.name, model.version); resolved.loaded) {
    const ModelTask task = resolved.loaded->model->config().task;
    REFUSE_IF(task != ModelTask::kEmbedding, "model", "is ", Quoted(model.name), ", which does ", ModelTaskName(task),
              "; /v1/embeddings needs one that does ", ModelTaskName(ModelTask::kEmbedding));
  }
  v1::PredictRequest request;
  request.set_model(model.name);
  request.set_version(model.version);
  RETURN_IF_ERROR(SetOptions(body.edgewise(), request));
  RETURN_IF_ERROR(CheckWritesNothing(body.edgewise()));
  RETURN_IF_ERROR(CheckTruncate(body.edgewise()));
  request.mutable_outputs()->set_dimensions(body.dimensions());
  for (std::string& text : *body.mutable_input()->mutable_texts()) {
    request.add_inputs()->mutable_sequence()->set_text(std::move(text));
  }
  for (v1::TokenIds& ids : *body.mutable_input()->mutable_ids()) {
    request.add_inputs()->mutable_sequence()->mutable_token_ids()->Swap(&ids);
  }
  for (v1::Input& input : *request.mutable_inputs()) {
    input.mutable_sequence()->set_truncate(body.edgewise().truncate());
  }
  REFUSE_IF(request.inputs().empty(), "input", "is missing or empty");
  return request;
}

void WriteEmbedding(const v1::Prediction& prediction, bool base64, JsonOut& json) {
  json.Key("embedding");
  if (base64) {
    const auto* bytes = reinterpret_cast<const char*>(prediction.embedding().data());
    json.String(absl::Base64Escape({bytes, sizeof(float) * static_cast<size_t>(prediction.embedding_size())}));
  } else {
    json.BeginArray();
    for (const float value : prediction.embedding()) json.Number(value);
    json.EndArray();
  }
}

// "inputs[1].sequence.text" is "input[1]", or "input" where that is one text.
std::string NameHere(const std::string& field, bool list) {
  if (!absl::StartsWith(field, "inputs")) return NameInBody(field);
  const size_t index = list ? std::string_view("inputs").size() : field.find(']') + 1;
  std::string name = absl::StrCat("input", field.substr(index));
  for (const char* content : {".sequence.text", ".sequence.token_ids", ".sequence"}) {
    if (const size_t at = name.find(content); at != std::string::npos) {
      return name.erase(at, std::string_view(content).size());
    }
  }
  return name;
}

void WriteBody(const v1::PredictResponse& response, const std::string& model, bool base64, JsonOut& json) {
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (int i = 0; i < response.predictions_size(); ++i) {
    const v1::Prediction& prediction = response.predictions(i);
    const v1::EdgeReport& edges = prediction.edges();
    double variance = 0.0;
    for (const float deviation : prediction.stddev()) variance += double{deviation} * double{deviation};
    json.BeginObject().Key("object").String("embedding").Key("index").Integer(i);
    WriteEmbedding(prediction, base64, json);
    json.Key("edgewise").BeginObject();
    WriteEdges(edges.edges(), static_cast<double>(edges.pairs()), edges.budget(), edges.capped(), json);
    json.Key("samples").Unsigned(prediction.samples()).Key("spread").Number(std::sqrt(variance));
    json.EndObject().EndObject();
  }
  json.EndArray().Key("model").String(model).Key("usage").BeginObject();
  json.Key("prompt_tokens").Unsigned(response.input_tokens()).Key("total_tokens").Unsigned(response.input_tokens());
  json.EndObject().Key("edgewise").BeginObject().Key("version").Integer(response.version());
  json.Key("device").String(response.device()).Key("seed").Unsigned(response.seed());
  json.Key("degraded").Bool(response.has_degraded()).EndObject().EndObject();
}

void Serve(CallParts& parts, const std::shared_ptr<Exchange>& exchange) {
  http::OpenAiEmbeddings body;
  absl::StatusOr<v1::PredictRequest> request;
  absl::Status status =
      ReadJson(exchange->request.body, JsonDialect::kPlain, body, exchange->body_memory, parts.options.limits);
  exchange->request.body = std::string();
  if (status.ok()) {
    request = ParseEmbeddings(body, parts.repository);
    status = request.status();
  }
  if (!status.ok()) {
    parts.handler.Name(exchange->call, ParseModelName(body.model()).value_or(ModelName()).name);
    return exchange->Refuse(status);
  }
  request->set_request_id(exchange->request.id.empty() ? NewId("embd-") : exchange->request.id);
  auto response = std::make_shared<v1::PredictResponse>();
  Ticket ticket = TicketOf(*exchange, Rpc::kPredict, exchange->memory);
  ticket.response = response.get();
  ticket.reply = [exchange, response, model = body.model(), list = body.input().list(),
                  base64 = body.encoding_format() == "base64"](absl::Status end) {
    if (end.ok()) end = exchange->ExpectJson(response->ByteSizeLong());
    if (!end.ok()) {
      return exchange->Refuse(Renamed(end, [list](const std::string& field) { return NameHere(field, list); }));
    }
    JsonOut json(*exchange);
    WriteBody(*response, model, base64, json);
    exchange->AnswerJson(json);
  };
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  parts.handler.Start(*request, std::move(ticket));
}

}  // namespace

void AddOpenAiEmbeddings(Routes& routes, CallParts& parts) {
  routes.Add({.method = "POST",
              .path = "/v1/embeddings",
              .error = OpenAiError,
              .rpc = Rpc::kPredict,
              .body = http::OpenAiEmbeddings::descriptor(),
              .answer = absl::StrCat(
                  R"({"object":"string","data":[{"object":"string","index":"integer","embedding":"array|string",
                      "edgewise":{)",
                  kEdgesShape, R"(,"samples":"integer","spread":"number"}}],"model":"string",
                  "usage":{"prompt_tokens":"integer","total_tokens":"integer"},
                  "edgewise":{"version":"integer","device":"string","seed":"integer","degraded":"boolean"}})"),
              .serve = [&parts](const std::shared_ptr<Exchange>& exchange) { Serve(parts, exchange); }});
}

}  // namespace edgewise::server
