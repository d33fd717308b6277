// The API of text-embeddings-inference (TEI), and Cohere's rerank, which asks the same models (docs/http.md).
#ifndef EDGEWISE_SERVER_HTTP_TEI_H_
#define EDGEWISE_SERVER_HTTP_TEI_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/http/json_in.h"
#include "server/http/openai.h"
#include "server/http/routes.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// `parts` must outlive the routes.
void AddTeiRoutes(Routes& routes, CallParts& parts);
void AddTeiPredict(Routes& routes, CallParts& parts);
void AddTeiTexts(Routes& routes, CallParts& parts);
void AddCohereRoutes(Routes& routes, CallParts& parts);

// {"error", "error_type"}.
std::string TeiError(const absl::Status& status, int code);
// The code of an error in that API: 422 for a wrong field.
int TeiCodeOf(const absl::Status& status);

// Models that a route may use.
struct ModelUse {
  const char* name;  // what they do, for messages
  bool (*fits)(const LoadedModel& model);
};
extern const ModelUse kEmbeds, kClassifies, kReranks;
extern const ModelUse kComputes;  // any of these
extern const ModelUse kTokenizes;

using Texts = google::protobuf::RepeatedPtrField<std::string>;

// The model that a request is for.
struct ChosenModel {
  ModelName name;  // as the request has it; version 0: the latest
  std::shared_ptr<const LoadedModel> loaded;
};
// `name` is "NAME" or "NAME@VERSION"; empty: the only model, by its latest version, of the first use that has one.
// Refused: 422 where there are several, or none, with their names; 424 where the model has none of the uses; else as
// Repository::Resolve.
HttpRefusal ChooseModel(const Repository& repository, const std::string& name, std::span<const ModelUse* const> uses,
                        ChosenModel* chosen);

// A request of TEI while its route reads it.
struct TeiCall {
  CallParts& parts;
  std::shared_ptr<Exchange> exchange;
  std::string model;  // that the path names; empty: the body may
  // The name that the body has for an input of the request, for errors.
  std::string (*name_of)(int64_t input) = [](int64_t input) { return absl::StrCat("inputs[", input, "]"); };
};

// Reads the body into `body`, whose field `model` becomes that of the path where there is one. False: it was refused.
template <typename Body>
bool ReadTeiBody(const TeiCall& call, Body& body);
// Refuses the request and counts it, where its route has requests of ours.
void RefuseTei(const TeiCall& call, const HttpRefusal& refusal, const std::string& model);

// Computes `request`, and answers with what `write` makes of the response. `code_of`: of errors. `kept_bytes`:
// of the body's texts that `write` puts into the answer; the body stays counted until then. `label_bytes`: of the
// model's texts there.
void StartTeiPredict(const TeiCall& call, v1::PredictRequest& request,
                     std::function<void(const v1::PredictResponse&, JsonOut&)> write,
                     int (*code_of)(const absl::Status&) = TeiCodeOf, uint64_t kept_bytes = 0,
                     uint64_t label_bytes = 0);

// Refuses the options that are for generations, and the cut of texts, which is a field of its own here.
absl::Status CheckTei(const http::Options& options);
// Refuses more inputs than a request may have: 413.
HttpRefusal CheckCount(const TeiCall& call, int count, const char* field);
// Whether somebody still waits for the answer: OK, DEADLINE_EXCEEDED or CANCELLED. Asked between two inputs.
absl::Status CheckWanted(const TeiCall& call);
// Adds a pair of query and text for each of the texts. Refused: CheckCount; 422 without a query or a text; HoldCopies.
HttpRefusal AddPairs(const TeiCall& call, const std::string& query, const Texts& texts, const char* field,
                     v1::Truncate truncate, v1::PredictRequest& request);
// The score of a model that reranks: the sigmoid of its logit, or the logit where `raw`. The response has logits where
// `config.sigmoid` and `raw`.
float ScoreOf(const v1::Prediction& prediction, const ModelConfig& config, bool raw);
// The name of a label; "LABEL_<number>" where the model names none.
std::string TeiLabel(const ModelConfig& config, int label);
// The inputs by falling score, among equals the first one first.
struct Rank {
  int index = 0;
  float score = 0.0f;
};
std::vector<Rank> RanksOf(const v1::PredictResponse& response, const ModelConfig& config, bool raw);

template <typename Body>
bool ReadTeiBody(const TeiCall& call, Body& body) {
  Exchange& exchange = *call.exchange;
  absl::Status status =
      ReadJson(exchange.request.body, JsonDialect::kPlain, body, exchange.body_memory, call.parts.options.limits);
  if (status.ok() && !call.model.empty()) {
    const bool differs = !body.model().empty() && body.model() != call.model;
    if (differs) status = FieldError("model", absl::StrCat("is ", Quoted(body.model()), "; the path names another"));
    body.set_model(call.model);
  }
  if (!status.ok()) RefuseTei(call, {TeiCodeOf(status), status}, body.model());
  return status.ok();
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_TEI_H_
