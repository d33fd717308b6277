// Cohere's rerank at /v1/rerank and /v2/rerank, as other servers have it too (Jina's fields are among these).
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "server/http/json_out.h"
#include "server/http/tei.h"

namespace edgewise::server {
namespace {

// {"message"}
std::string CohereError(const absl::Status& status, int) {
  JsonOut json;
  json.BeginObject().Key("message").String(std::string(status.message())).EndObject();
  return json.Take();
}

// Moves the documents, texts or objects with one, into `texts`.
absl::Status TakeDocuments(http::Content& documents, Texts& texts) {
  REFUSE_IF(!documents.list() && documents.texts_size() > 0, "documents", "is a string; a list is expected");
  REFUSE_IF(documents.ids_size() > 0, "documents", "has numbers; texts are expected");
  for (int i = 0; i < documents.parts_size(); ++i) {
    http::Part& part = *documents.mutable_parts(i);
    const bool others = !part.type().empty() || part.has_image_url() || part.has_input_audio() || part.has_file();
    REFUSE_IF(others, absl::StrCat("documents[", i, "]"), "has fields other than text, which are not ranked by");
    *texts.Add() = std::move(*part.mutable_text());
  }
  if (documents.texts_size() > 0) texts.Swap(documents.mutable_texts());
  return absl::OkStatus();
}

// Refuses what would change the answer and is not served.
absl::Status CheckFields(const http::CohereRerank& body, const ModelConfig& config) {
  const auto most = static_cast<uint32_t>(MostTextTokens(config));
  REFUSE_IF(body.has_rank_fields() && body.rank_fields().text() != R"(["text"])", "rank_fields",
            R"(is not served; allowed is ["text"])");
  REFUSE_IF(body.has_max_chunks_per_doc() && body.max_chunks_per_doc() != 1, "max_chunks_per_doc", "is ",
            body.max_chunks_per_doc(), "; allowed is 1: a document is cut where it is longer than the model takes");
  REFUSE_IF(body.has_max_tokens_per_doc() && body.max_tokens_per_doc() < most, "max_tokens_per_doc", "is ",
            body.max_tokens_per_doc(), "; allowed are ", most, ", the tokens that the model takes, and more");
  REFUSE_IF(body.has_relevant_spans(), "relevant_spans", "is not served; leave it out");
  if (body.priority() > 0) {  // no field of ours, whose name it is
    return absl::InvalidArgumentError(absl::StrCat("priority is ", body.priority(), "; allowed is 0"));
  }
  REFUSE_IF(body.has_top_n() && body.top_n() == 0, "top_n", "is 0; allowed are 1 and more");
  RETURN_IF_ERROR(CheckTei(body.edgewise()));
  return absl::OkStatus();
}

// The first `top` of the ranks; with their documents where `texts` has them.
void WriteBody(const v1::PredictResponse& response, const ModelConfig& config, size_t top, const Texts& texts,
               JsonOut& json) {
  std::vector<Rank> ranks = RanksOf(response, config, false);
  if (top < ranks.size()) ranks.resize(top);
  json.BeginObject().Key("id").String(response.request_id()).Key("results").BeginArray();
  for (const auto& [index, score] : ranks) {
    json.BeginObject().Key("index").Integer(index).Key("relevance_score").Number(score);
    if (!texts.empty()) {
      json.Key("document").BeginObject().Key("text").String(texts[index]).EndObject();
    }
    const v1::EdgeReport& edges = response.predictions(index).edges();
    json.Key("edgewise").BeginObject();
    WriteEdges(edges.edges(), static_cast<double>(edges.pairs()), edges.budget(), edges.capped(), json);
    json.Key("samples").Unsigned(response.predictions(index).samples()).EndObject().EndObject();
  }
  json.EndArray().Key("model").String(response.model()).Key("meta").BeginObject();
  json.Key("billed_units").BeginObject().Key("search_units").Integer(1).EndObject();
  json.Key("tokens").BeginObject().Key("input_tokens").Unsigned(response.input_tokens()).EndObject().EndObject();
  json.Key("usage").BeginObject().Key("prompt_tokens").Unsigned(response.input_tokens());
  json.Key("total_tokens").Unsigned(response.input_tokens()).EndObject();
  json.Key("edgewise").BeginObject().Key("version").Integer(response.version());
  json.Key("device").String(response.device()).Key("seed").Unsigned(response.seed());
  json.Key("degraded").Bool(response.has_degraded()).EndObject().EndObject();
}

// The request of a body whose fields and model are right.
HttpRefusal MakeRequest(const TeiCall& call, http::CohereRerank& body, ChosenModel& chosen, Texts& texts,
                        v1::PredictRequest& request) {
  static constexpr const ModelUse* kUses[] = {&kReranks};
  HttpRefusal refusal = ChooseModel(call.parts.repository, body.model(), kUses, &chosen);
  if (refusal.code != 0) return {refusal.code == 424 ? 400 : refusal.code, refusal.status};
  absl::Status status = CheckFields(body, chosen.loaded->model->config());
  status.Update(TakeDocuments(*body.mutable_documents(), texts));
  status.Update(SetOptions(body.edgewise(), request));
  if (!status.ok()) return {HttpCodeOf(status), status};
  request.set_model(chosen.name.name);
  request.set_version(chosen.name.version);
  refusal = AddPairs(call, body.query(), texts, "documents", v1::TAIL, request);
  return {refusal.code == 422 ? 400 : refusal.code, refusal.status};
}

void Rerank(const TeiCall& call) {
  http::CohereRerank body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  auto texts = std::make_shared<Texts>();
  const HttpRefusal refusal = MakeRequest(call, body, chosen, *texts, request);
  if (refusal.code != 0) return RefuseTei(call, refusal, body.model());
  uint64_t kept = 0;
  for (const std::string& text : *texts) kept += 1 + text.size();
  if (!body.return_documents()) {
    texts->Clear();
    kept = 0;
  }
  TeiCall named = call;
  named.name_of = [](int64_t input) { return absl::StrCat("documents[", input, "]"); };
  StartTeiPredict(
      named, request,
      [top = body.has_top_n() ? body.top_n() : SIZE_MAX, texts, model = chosen.loaded](
          const v1::PredictResponse& response, JsonOut& json) {
        WriteBody(response, model->model->config(), top, *texts, json);
      },
      HttpCodeOf, kept);
}

}  // namespace

void AddCohereRoutes(Routes& routes, CallParts& parts) {
  routes.AddApi("/v2/rerank", CohereError);
  for (const char* path : {"/v1/rerank", "/v2/rerank"}) {
    routes.Add({.method = "POST",
                .path = path,
                .error = CohereError,
                .rpc = Rpc::kPredict,
                .body = http::CohereRerank::descriptor(),
                .answer = absl::StrCat(
                    R"({"id":"string","results":[{"index":"integer","relevance_score":"number",
                        "document?":{"text":"string"},"edgewise":{)",
                    kEdgesShape, R"(,"samples":"integer"}}],"model":"string",
                    "meta":{"billed_units":{"search_units":"integer"},"tokens":{"input_tokens":"integer"}},
                    "usage":{"prompt_tokens":"integer","total_tokens":"integer"},
                    "edgewise":{"version":"integer","device":"string","seed":"integer","degraded":"boolean"}})"),
                .serve = [&parts](const std::shared_ptr<Exchange>& exchange) {
                  Rerank({parts, exchange, ""});
                }});
  }
}

}  // namespace edgewise::server
