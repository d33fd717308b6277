// Routes of TEI that compute: /embed, /embed_all, /similarity, /predict, /rerank, and POST / for any of these.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/config/config.h"
#include "server/base/copies.h"
#include "server/http/json_out.h"
#include "server/http/tei.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

constexpr uint64_t kBytesOfScore = 8;  // a score in JSON takes four times as many, beside its label
constexpr uint64_t kBytesOfList = 64;  // of a list in a parsed `inputs`, beside what its text is counted with

absl::StatusOr<v1::Truncate> TruncateOf(bool truncate, const std::string& direction) {
  const bool left = direction == "Left" || direction == "left";
  REFUSE_IF(!left && !direction.empty() && direction != "Right" && direction != "right", "truncation_direction", "is ",
            Quoted(direction), "; allowed are Left and Right");
  return !truncate ? v1::REFUSE : left ? v1::HEAD : v1::TAIL;
}

absl::Status SetCommon(const http::Options& options, const ModelName& model, v1::PredictRequest& request) {
  RETURN_IF_ERROR(CheckTei(options));
  request.set_model(model.name);
  request.set_version(model.version);
  return SetOptions(options, request);
}

// Sets the cut and the prompt of every text. Their copies of the prompt's name are counted.
template <typename Parameters>
absl::Status SetTexts(const Parameters& parameters, const TeiCall& call, v1::PredictRequest& request) {
  ASSIGN_OR_RETURN(const v1::Truncate truncate, TruncateOf(parameters.truncate(), parameters.truncation_direction()));
  const uint64_t copies = parameters.prompt_name().size() * static_cast<uint64_t>(request.inputs_size());
  RETURN_IF_ERROR(HoldCopies(copies, 0, call.parts.message_limit(), call.exchange->body_memory));
  for (v1::Input& input : *request.mutable_inputs()) {
    RETURN_IF_ERROR(CheckWanted(call));
    input.mutable_sequence()->set_truncate(truncate);
    if (parameters.has_prompt_name()) input.mutable_sequence()->set_prompt_name(parameters.prompt_name());
  }
  return absl::OkStatus();
}

// Chooses the model, then lets `fill` make the request of the body. False: it was refused.
template <typename Body, typename Fill>
bool Prepare(const TeiCall& call, const Body& body, std::span<const ModelUse* const> uses, ChosenModel& chosen,
             v1::PredictRequest& request, Fill fill) {
  HttpRefusal refusal = ChooseModel(call.parts.repository, body.model(), uses, &chosen);
  if (refusal.code == 0) {
    absl::Status status = SetCommon(body.edgewise(), chosen.name, request);
    if (status.ok()) status = fill();
    refusal = status.ok() ? CheckCount(call, request.inputs_size(), "inputs") : HttpRefusal{TeiCodeOf(status), status};
  }
  if (refusal.code != 0) RefuseTei(call, refusal, body.model());
  return refusal.code == 0;
}

// The length of an embedding that is to be divided by it; 1: it is to stay as it is.
double LengthOf(const v1::Prediction& prediction, bool normalize) {
  if (!normalize || prediction.normalized()) return 1.0;
  double squares = 0.0;
  for (const float value : prediction.embedding()) squares += double{value} * double{value};
  return squares > 0.0 ? std::sqrt(squares) : 1.0;
}

// Takes the inputs out of the body.
absl::Status AddTexts(const TeiCall& call, http::TeiEmbed& body, v1::PredictRequest& request) {
  REFUSE_IF(body.inputs().parts_size() > 0, "inputs", "has objects; texts or token ids are expected");
  for (std::string& text : *body.mutable_inputs()->mutable_texts()) {
    request.add_inputs()->mutable_sequence()->set_text(std::move(text));
  }
  for (v1::TokenIds& ids : *body.mutable_inputs()->mutable_ids()) {
    request.add_inputs()->mutable_sequence()->mutable_token_ids()->Swap(&ids);
  }
  REFUSE_IF(request.inputs().empty(), "inputs", "is missing or empty");
  return SetTexts(body, call, request);
}

// The call, whose errors name a single text as the body does.
TeiCall Named(const TeiCall& call, const http::Content& inputs) {
  TeiCall named = call;
  if (!inputs.list()) named.name_of = [](int64_t) { return std::string("inputs"); };
  return named;
}

// The rows of a list, each a list.
void WriteRows(const google::protobuf::RepeatedField<float>& values, int columns, JsonOut& json) {
  json.BeginArray();
  for (int i = 0; i < values.size(); ++i) {
    if (i % columns == 0) json.BeginArray();
    json.Number(values[i]);
    if ((i + 1) % columns == 0) json.EndArray();
  }
  json.EndArray();
}

void EmbedAll(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kEmbeds};
  http::TeiEmbed body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  const auto fill = [&]() -> absl::Status {
    REFUSE_IF(body.has_normalize(), "normalize", "is no field of /embed_all: its rows are not normalised");
    REFUSE_IF(body.has_dimensions(), "dimensions", "is no field of /embed_all: its rows are not cut");
    request.mutable_outputs()->set_token_embeddings(true);
    return AddTexts(call, body, request);
  };
  if (!Prepare(call, body, kUses, chosen, request, fill)) return;
  StartTeiPredict(Named(call, body.inputs()), request, [](const v1::PredictResponse& response, JsonOut& json) {
    json.BeginArray();
    for (const v1::Prediction& prediction : response.predictions()) {
      const v1::Prediction::TokenEmbeddings& tokens = prediction.token_embeddings();
      WriteRows(tokens.values(), tokens.values_size() / static_cast<int>(tokens.tokens()), json);
    }
    json.EndArray();
  });
}

void Embed(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kEmbeds};
  http::TeiEmbed body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  const auto fill = [&]() -> absl::Status {
    REFUSE_IF(body.has_dimensions() && body.dimensions() == 0, "dimensions", "is 0; allowed are 1 and more");
    request.mutable_outputs()->set_dimensions(body.dimensions());
    return AddTexts(call, body, request);
  };
  if (!Prepare(call, body, kUses, chosen, request, fill)) return;
  const bool normalize = !body.has_normalize() || body.normalize();
  StartTeiPredict(Named(call, body.inputs()), request, [normalize](const v1::PredictResponse& response, JsonOut& json) {
    json.BeginArray();
    for (const v1::Prediction& prediction : response.predictions()) {
      const double length = LengthOf(prediction, normalize);
      json.BeginArray();
      for (const float value : prediction.embedding()) json.Number(static_cast<float>(double{value} / length));
      json.EndArray();
    }
    json.EndArray();
  });
}

double Cosine(const v1::Prediction& a, const v1::Prediction& b) {
  double product = 0.0;
  for (int i = 0; i < a.embedding_size(); ++i) product += double{a.embedding(i)} * double{b.embedding(i)};
  return product / (LengthOf(a, true) * LengthOf(b, true));
}

void Similarity(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kEmbeds};
  http::TeiSimilarity body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  const auto fill = [&]() -> absl::Status {
    REFUSE_IF(!body.inputs().has_source_sentence(), "inputs.source_sentence", "is missing");
    REFUSE_IF(body.inputs().sentences().empty(), "inputs.sentences", "is missing or empty");
    const auto add = [&](std::string* text) { request.add_inputs()->mutable_sequence()->set_text(std::move(*text)); };
    add(body.mutable_inputs()->mutable_source_sentence());
    for (std::string& text : *body.mutable_inputs()->mutable_sentences()) add(&text);
    return SetTexts(body.parameters(), call, request);
  };
  if (!Prepare(call, body, kUses, chosen, request, fill)) return;
  TeiCall named = call;
  named.name_of = [](int64_t input) {
    return input == 0 ? std::string("inputs.source_sentence") : absl::StrCat("inputs.sentences[", input - 1, "]");
  };
  StartTeiPredict(named, request, [](const v1::PredictResponse& response, JsonOut& json) {
    json.BeginArray();
    for (int i = 1; i < response.predictions_size(); ++i) {
      json.Number(static_cast<float>(Cosine(response.predictions(0), response.predictions(i))));
    }
    json.EndArray();
  });
}

// A text, or two in a list.
absl::Status AddInput(const json& value, const std::string& field, v1::Truncate truncate, v1::PredictRequest& request) {
  const bool list = value.is_array();
  const auto is_text = [](const json& one) { return one.is_string(); };
  REFUSE_IF(list ? value.empty() || value.size() > 2 || !std::all_of(value.begin(), value.end(), is_text)
                 : !value.is_string(),
            field, "is ",
            list                ? "another list"
            : value.is_object() ? "an object"
                                : value.dump(),
            "; expected a string, or a list of one or two strings");
  v1::Input& input = *request.add_inputs();
  input.mutable_sequence()->set_text((list ? value[0] : value).get<std::string>());
  input.mutable_sequence()->set_truncate(truncate);
  if (!list || value.size() == 1) return absl::OkStatus();
  input.mutable_second()->set_text(value[1].get<std::string>());
  input.mutable_second()->set_truncate(truncate);
  return absl::OkStatus();
}

// "a", ["a"] and ["a", "b"] are one input; [["a"], ["b", "c"]] are several.
absl::Status AddInputs(const std::string& text, v1::Truncate truncate, MemoryHold& memory, bool& batch,
                       v1::PredictRequest& request) {
  const auto lists = static_cast<uint64_t>(std::count(text.begin(), text.end(), '['));
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + kBytesOfList * lists));
  const json inputs = json::parse(text, nullptr, false);
  batch = inputs.is_array() && !inputs.empty() && inputs[0].is_array();
  if (!batch) return AddInput(inputs, "inputs", truncate, request);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string field = absl::StrCat("inputs[", i, "]");
    REFUSE_IF(!inputs[i].is_array(), field, "is no list; those before it are");
    RETURN_IF_ERROR(AddInput(inputs[i], field, truncate, request));
  }
  return absl::OkStatus();
}

// All labels of an input by falling score.
void WriteScores(const v1::Prediction& prediction, const LoadedModel& model, bool raw, JsonOut& json) {
  const ModelConfig& config = model.model->config();
  std::vector<Rank> labels;
  if (kReranks.fits(model)) {
    labels.push_back({0, ScoreOf(prediction, config, raw)});
  } else {
    const auto& scores = raw ? prediction.logits() : prediction.probabilities();
    for (int i = 0; i < scores.size(); ++i) labels.push_back({i, scores[i]});
  }
  std::stable_sort(labels.begin(), labels.end(), [](const Rank& a, const Rank& b) { return a.score > b.score; });
  json.BeginArray();
  for (const auto& [index, score] : labels) {
    json.BeginObject().Key("score").Number(score).Key("label").String(TeiLabel(config, index)).EndObject();
  }
  json.EndArray();
}

// The bytes of the labels of `inputs` answers, each with its name, beside their scores.
uint64_t LabelBytes(const LoadedModel& model, int inputs) {
  const ModelConfig& config = model.model->config();
  uint64_t bytes = 0;
  for (int i = 0; i < config.num_labels; ++i) bytes += kBytesOfScore + TeiLabel(config, i).size();
  return bytes * static_cast<uint64_t>(inputs);
}

// Asks for logits where raw scores are made of them.
void AskForRaw(const LoadedModel& model, bool raw, v1::PredictRequest& request) {
  const bool as_they_are = kReranks.fits(model) && !model.model->config().sigmoid;
  if (raw && !as_they_are) request.mutable_outputs()->set_logits(true);
}

void Predict(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kClassifies, &kReranks};
  http::TeiPredict body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  bool batch = false;
  const auto fill = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const v1::Truncate truncate, TruncateOf(body.truncate(), body.truncation_direction()));
    REFUSE_IF(body.has_parameters() && body.parameters().text() != "{}", "parameters", "is not served; leave it out");
    REFUSE_IF(!body.has_inputs(), "inputs", "is missing");
    AskForRaw(*chosen.loaded, body.raw_scores(), request);
    return AddInputs(body.inputs().text(), truncate, call.exchange->body_memory, batch, request);
  };
  if (!Prepare(call, body, kUses, chosen, request, fill)) return;
  StartTeiPredict(
      call, request,
      [batch, raw = body.raw_scores(), model = chosen.loaded](const v1::PredictResponse& response, JsonOut& json) {
        if (batch) json.BeginArray();
        for (const v1::Prediction& prediction : response.predictions()) {
          WriteScores(prediction, *model, raw, json);
        }
        if (batch) json.EndArray();
      },
      TeiCodeOf, 0, LabelBytes(*chosen.loaded, request.inputs_size()));
}

void Rerank(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kReranks};
  http::TeiRerank body;
  if (!ReadTeiBody(call, body)) return;
  v1::PredictRequest request;
  ChosenModel chosen;
  v1::Truncate truncate = v1::REFUSE;
  const auto fill = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(truncate, TruncateOf(body.truncate(), body.truncation_direction()));
    AskForRaw(*chosen.loaded, body.raw_scores(), request);
    return absl::OkStatus();
  };
  if (!Prepare(call, body, kUses, chosen, request, fill)) return;
  const HttpRefusal refusal = AddPairs(call, body.query(), body.texts(), "texts", truncate, request);
  if (refusal.code != 0) return RefuseTei(call, refusal, body.model());
  auto texts = std::make_shared<Texts>();  // that come back
  uint64_t kept = 0;
  if (body.return_text()) texts->Swap(body.mutable_texts());
  for (const std::string& text : *texts) kept += 1 + text.size();
  TeiCall named = call;
  named.name_of = [](int64_t input) { return absl::StrCat("texts[", input, "]"); };
  StartTeiPredict(
      named, request,
      [texts, raw = body.raw_scores(), model = chosen.loaded](const v1::PredictResponse& response, JsonOut& json) {
        json.BeginArray();
        for (const auto& [index, score] : RanksOf(response, model->model->config(), raw)) {
          json.BeginObject().Key("index").Integer(index);
          if (!texts->empty()) json.Key("text").String((*texts)[index]);
          json.Key("score").Number(score).EndObject();
        }
        json.EndArray();
      },
      TeiCodeOf, kept);
}

// As the model does: embeddings, labels or ranks.
void Dispatch(const TeiCall& call) {
  static constexpr const ModelUse *kUses[] = {&kComputes}, *kRanking[] = {&kReranks};
  http::TeiAny body;
  if (!ReadTeiBody(call, body)) return;
  const bool ranks = body.has_query() || body.has_texts();
  ChosenModel chosen;
  const HttpRefusal refusal = ChooseModel(call.parts.repository, body.model(),
                                          ranks ? std::span<const ModelUse* const>(kRanking) : kUses, &chosen);
  if (refusal.code != 0) return RefuseTei(call, refusal, body.model());
  TeiCall named = call;
  if (body.model().empty()) named.model = chosen.name.name;
  ranks ? Rerank(named) : kEmbeds.fits(*chosen.loaded) ? Embed(named) : Predict(named);
}

}  // namespace

void AddTeiPredict(Routes& routes, CallParts& parts) {
  struct Entry {
    const char *path, *of_model;
    void (*serve)(const TeiCall& call);
    const google::protobuf::Descriptor* (*body)();
    const char* answer;
  };
  static constexpr Entry kEntries[] = {
      {"/embed", "/models/{}/embed", Embed, http::TeiEmbed::descriptor, R"([["number"]])"},
      {"/embed_all", "/models/{}/embed_all", EmbedAll, http::TeiEmbed::descriptor, R"([[["number"]]])"},
      {"/similarity", "/models/{}/similarity", Similarity, http::TeiSimilarity::descriptor, R"(["number"])"},
      {"/predict", "/models/{}/predict", Predict, http::TeiPredict::descriptor, R"(["object|array"])"},
      {"/rerank", "/models/{}/rerank", Rerank, http::TeiRerank::descriptor,
       R"([{"index":"integer","text?":"string","score":"number"}])"},
      {"/", "/models/{}", Dispatch, http::TeiAny::descriptor, R"(["object|array"])"}};
  for (const Entry& entry : kEntries) {
    for (const char* path : {entry.path, entry.of_model}) {
      routes.Add({.method = "POST",
                  .path = path,
                  .error = TeiError,
                  .rpc = Rpc::kPredict,
                  .body = entry.body(),
                  .answer = entry.answer,
                  .serve = [&parts, serve = entry.serve](const std::shared_ptr<Exchange>& exchange) {
                    const std::vector<std::string>& arguments = exchange->request.arguments;
                    serve({parts, exchange, arguments.empty() ? "" : arguments[0]});
                  }});
    }
  }
}

}  // namespace edgewise::server
