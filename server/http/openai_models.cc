// /v1/models and /v1/models/{}, the versions that serve; and the table of all routes of this API.
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/config/config.h"
#include "server/http/openai.h"

namespace edgewise::server {
namespace {

constexpr char kModelShape[] =
    R"({"id":"string","object":"string","created":"integer","owned_by":"string",
        "edgewise":{"version":"integer","task":"string","max_tokens":"integer"}})";

void WriteModel(const LoadedModel& model, const std::string& id, int64_t created, JsonOut& json) {
  const ModelConfig& config = model.model->config();
  json.BeginObject().Key("id").String(id).Key("object").String("model").Key("created").Integer(created);
  json.Key("owned_by").String("edgewise").Key("edgewise").BeginObject();
  json.Key("version").Integer(model.version).Key("task").String(ModelTaskName(config.task));
  json.Key("max_tokens").Integer(config.max_position_embeddings).EndObject().EndObject();
}

}  // namespace

void AddOpenAiModels(Routes& routes, CallParts& parts) {
  const int64_t created = UnixTime();
  routes.Add({.method = "GET",
              .path = "/v1/models",
              .error = OpenAiError,
              .apart = true,  // the answer grows with the models
              .answer = absl::StrCat(R"({"object":"string","data":[)", kModelShape, "]}"),
              .serve = [&parts, created](const std::shared_ptr<Exchange>& exchange) {
                const std::vector<ModelStatus> list = parts.repository.List();
                JsonOut json;
                json.BeginObject().Key("object").String("list").Key("data").BeginArray();
                for (const ModelStatus& status : list) {
                  if (!status.loaded) continue;
                  // The latest by its name; earlier ones with their version.
                  const bool latest = parts.repository.Resolve(status.name, 0).loaded == status.loaded;
                  const std::string id = latest ? status.name : absl::StrCat(status.name, "@", status.version);
                  WriteModel(*status.loaded, id, created, json);
                }
                json.EndArray().EndObject();
                exchange->AnswerJson(json.Take());
              }});
  routes.Add({.method = "GET",
              .path = "/v1/models/{}",
              .error = OpenAiError,
              .answer = kModelShape,
              .serve = [&parts, created](const std::shared_ptr<Exchange>& exchange) {
                const std::string& id = exchange->request.arguments[0];
                const absl::StatusOr<ModelName> name = ParseModelName(id);
                if (!name.ok()) return exchange->Refuse(name.status());
                const Resolved resolved = parts.repository.Resolve(name->name, name->version);
                if (!resolved.status.ok()) return exchange->Refuse(resolved.status);
                JsonOut json;
                WriteModel(*resolved.loaded, id, created, json);
                exchange->AnswerJson(json.Take());
              }});
}

void AddOpenAiRoutes(Routes& routes, CallParts& parts) {
  routes.AddApi("/v1/", OpenAiError);
  routes.AddHint("/v1/responses", "use /v1/chat/completions");
  AddOpenAiModels(routes, parts);
  AddOpenAiGeneration(routes, parts);
  AddOpenAiEmbeddings(routes, parts);
}

}  // namespace edgewise::server
