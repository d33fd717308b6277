#include "server/http/tei.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "model/config/config.h"
#include "server/base/copies.h"
#include "server/http/json_out.h"

namespace edgewise::server {
namespace {

constexpr size_t kMostNamesShown = 20;
constexpr uint64_t kBytesOfPair = 512;  // of an input with two texts, beside these

const ModelConfig& ConfigOf(const LoadedModel& model) { return model.model->config(); }

bool Embeds(const LoadedModel& model) { return ConfigOf(model).task == ModelTask::kEmbedding; }
bool Classifies(const LoadedModel& model) {
  const ModelConfig& config = ConfigOf(model);
  const bool of_texts = config.tokenizer.kind != TokenizerKind::kNone;
  return of_texts &&
         (config.task == ModelTask::kSequenceClassification || config.task == ModelTask::kPairClassification);
}
bool Reranks(const LoadedModel& model) {
  const ModelConfig& config = ConfigOf(model);
  return config.task == ModelTask::kRegression && config.num_labels == 1 && model.model->tokenizer() != nullptr;
}
bool Computes(const LoadedModel& model) { return Embeds(model) || Classifies(model) || Reranks(model); }
bool Tokenizes(const LoadedModel& model) { return model.model->tokenizer() != nullptr; }

// The report of a response whose body has no place for it.
std::string ReportOf(const v1::PredictResponse& response) {
  double edges = 0.0, pairs = 0.0;
  bool capped = false;
  for (const v1::Prediction& prediction : response.predictions()) {
    edges += prediction.edges().edges();
    pairs += static_cast<double>(prediction.edges().pairs());
    capped |= prediction.edges().capped();
  }
  JsonOut json;
  json.BeginObject().Key("edges").Number(edges).Key("density").Number(pairs > 0.0 ? edges / pairs : 0.0);
  json.Key("capped").Bool(capped).Key("seed").Unsigned(response.seed());
  json.Key("degraded").Bool(response.has_degraded()).EndObject();
  return json.Take();
}

// "inputs[1].sequence.text" is what name_of makes of 1; of a pair both texts are.
std::string NameHere(const std::string& field, std::string (*name_of)(int64_t input)) {
  const size_t index = std::string_view("inputs[").size(), end = field.find(']');
  int64_t input = 0;
  if (!absl::StartsWith(field, "inputs[") || end == std::string::npos ||
      !absl::SimpleAtoi(field.substr(index, end - index), &input)) {
    return NameInBody(field);
  }
  std::string rest = field.substr(end + 1);
  for (const char* text : {".sequence", ".second"}) {
    if (absl::StartsWith(rest, text)) rest.erase(0, std::string_view(text).size());
  }
  if (absl::StartsWith(rest, ".prompt_name")) return rest.substr(1);
  for (const char* content : {".text", ".token_ids"}) {
    if (absl::StartsWith(rest, content)) rest.erase(0, std::string_view(content).size());
  }
  return name_of(input) + rest;
}

}  // namespace

const ModelUse kEmbeds = {"embeds texts", Embeds}, kClassifies = {"classifies texts", Classifies},
               kReranks = {"reranks texts (a cross-encoder with one label)", Reranks},
               kComputes = {"embeds, classifies or reranks texts", Computes},
               kTokenizes = {"has a tokenizer of a Hugging Face folder", Tokenizes};

std::string TeiError(const absl::Status& status, int code) {
  const char* type = code == 429                  ? "Overloaded"
                     : code == 503                ? "Unhealthy"
                     : code == 424 || code >= 500 ? "Backend"
                                                  : "Validation";
  JsonOut json;
  json.BeginObject().Key("error").String(std::string(status.message())).Key("error_type").String(type).EndObject();
  return json.Take();
}

int TeiCodeOf(const absl::Status& status) {
  const int code = HttpCodeOf(status);
  return code == 400 ? 422 : code;
}

HttpRefusal ChooseModel(const Repository& repository, const std::string& name, std::span<const ModelUse* const> uses,
                        ChosenModel* chosen) {
  const std::string needed = absl::StrJoin(
      uses, " or ", [](std::string* text, const ModelUse* use) { absl::StrAppend(text, "that ", use->name); });
  if (!name.empty()) {
    absl::StatusOr<ModelName> parsed = ParseModelName(name);
    if (!parsed.ok()) return {TeiCodeOf(parsed.status()), parsed.status()};
    Resolved resolved = repository.Resolve(parsed->name, parsed->version);
    if (!resolved.status.ok()) return {TeiCodeOf(resolved.status), resolved.status};
    const LoadedModel& model = *resolved.loaded;
    if (std::none_of(uses.begin(), uses.end(), [&](const ModelUse* use) { return use->fits(model); })) {
      return {424, FieldError("model", absl::StrCat("is ", Quoted(name), ", which does ",
                                                    ModelTaskName(ConfigOf(model).task), "; needed is one ", needed))};
    }
    *chosen = {*std::move(parsed), std::move(resolved.loaded)};
    return {};
  }
  const std::vector<ModelStatus> list = repository.List();
  for (const ModelUse* use : uses) {
    std::set<std::string> names;
    for (const ModelStatus& status : list) {
      if (!status.loaded || !use->fits(*status.loaded)) continue;
      if (repository.Resolve(status.name, 0).loaded != status.loaded) continue;  // an earlier version
      names.insert(status.name);
      *chosen = {{.name = status.name}, status.loaded};
    }
    if (names.size() == 1) return {};
    if (names.empty()) continue;
    const bool all = names.size() <= kMostNamesShown;
    const auto end = all ? names.end() : std::next(names.begin(), kMostNamesShown);
    const std::string shown = absl::StrJoin(names.begin(), end, ", ");
    return {422, FieldError("model", absl::StrCat("is missing, and ", names.size(), " models fit: ", shown,
                                                  all ? "" : ", ..."))};
  }
  return {422, FieldError("model", absl::StrCat("is missing, and there is none ", needed))};
}

void RefuseTei(const TeiCall& call, const HttpRefusal& refusal, const std::string& model) {
  call.parts.handler.Name(call.exchange->call, ParseModelName(model).value_or(ModelName()).name);
  call.exchange->Refuse(refusal);
}

std::string TeiLabel(const ModelConfig& config, int label) {
  return config.labels.empty() ? absl::StrCat("LABEL_", label) : config.labels[static_cast<size_t>(label)];
}

void StartTeiPredict(const TeiCall& call, v1::PredictRequest& request,
                     std::function<void(const v1::PredictResponse&, JsonOut&)> write,
                     int (*code_of)(const absl::Status&), uint64_t kept_bytes, uint64_t label_bytes) {
  const std::shared_ptr<Exchange>& exchange = call.exchange;
  exchange->request.body = std::string();
  request.set_request_id(exchange->request.id.empty() ? NewId("tei-") : exchange->request.id);
  auto response = std::make_shared<v1::PredictResponse>();
  Ticket ticket = TicketOf(*exchange, Rpc::kPredict, exchange->memory);
  ticket.response = response.get();
  ticket.more_bytes = kept_bytes + label_bytes;
  ticket.reply = [exchange, response, write = std::move(write), code_of, more = kept_bytes + label_bytes,
                  name_of = call.name_of](absl::Status status) {
    if (status.ok()) status = exchange->ExpectJson(response->ByteSizeLong() + more);
    if (!status.ok()) {
      status = Renamed(status, [&](const std::string& field) { return NameHere(field, name_of); });
      return exchange->Refuse(HttpRefusal{code_of(status), status});
    }
    JsonOut json(*exchange);
    write(*response, json);
    exchange->AnswerJson(json, {.fields = {{"X-Edgewise", ReportOf(*response)}}});
  };
  MemoryHold held;  // the reply may come before the return, on another thread
  if (kept_bytes == 0) held = std::move(exchange->body_memory);
  call.parts.handler.Start(request, std::move(ticket));
}

absl::Status CheckTei(const http::Options& options) {
  REFUSE_IF(options.truncate() != v1::REFUSE, "edgewise.truncate", "is of /v1/embeddings and /v1/completions");
  return CheckWritesNothing(options);
}

HttpRefusal CheckCount(const TeiCall& call, int count, const char* field) {
  const auto found = static_cast<uint64_t>(count);
  const uint64_t most = call.parts.options.limits.max_inputs;
  if (found <= most) return {};
  return {413, FieldError(field, absl::StrCat("has ", found, " entries; the server takes at most ", most))};
}

absl::Status CheckWanted(const TeiCall& call) {
  return call.parts.handler.CheckWanted(call.exchange->cancelled.get_token(), call.exchange->deadline);
}

HttpRefusal AddPairs(const TeiCall& call, const std::string& query, const Texts& texts, const char* field,
                     v1::Truncate truncate, v1::PredictRequest& request) {
  if (query.empty()) return {422, FieldError("query", "is missing or empty")};
  if (texts.empty()) return {422, FieldError(field, "is missing or empty")};
  HttpRefusal refusal = CheckCount(call, texts.size(), field);
  if (refusal.code != 0) return refusal;
  const auto count = static_cast<uint64_t>(texts.size());
  uint64_t bytes = count * query.size();
  for (const std::string& text : texts) bytes += text.size();
  absl::Status status = HoldCopies(bytes, count * kBytesOfPair, call.parts.message_limit(), call.exchange->body_memory);
  for (const std::string& text : texts) {
    if (status.ok()) status = CheckWanted(call);
    if (!status.ok()) return {HttpCodeOf(status), status};
    v1::Input& input = *request.add_inputs();
    input.mutable_sequence()->set_text(query);
    input.mutable_sequence()->set_truncate(truncate);
    input.mutable_second()->set_text(text);
    input.mutable_second()->set_truncate(truncate);
  }
  return {};
}

float ScoreOf(const v1::Prediction& prediction, const ModelConfig& config, bool raw) {
  const float value = prediction.values(0);
  if (config.sigmoid) return raw ? prediction.logits(0) : value;
  return raw ? value : static_cast<float>(1.0 / (1.0 + std::exp(-double{value})));
}

std::vector<Rank> RanksOf(const v1::PredictResponse& response, const ModelConfig& config, bool raw) {
  std::vector<Rank> ranks;
  for (int i = 0; i < response.predictions_size(); ++i) {
    ranks.push_back({i, ScoreOf(response.predictions(i), config, raw)});
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) { return a.score > b.score; });
  return ranks;
}

void AddTeiRoutes(Routes& routes, CallParts& parts) {
  routes.AddApi("/models/", TeiError);
  routes.AddHint("/embed_sparse", "sparse embeddings are not served");
  AddTeiPredict(routes, parts);
  AddTeiTexts(routes, parts);
}

}  // namespace edgewise::server
