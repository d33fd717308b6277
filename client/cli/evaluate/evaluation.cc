#include "client/cli/evaluate/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/format.h"
#include "client/cli/request/connection.h"
#include "client/cli/request/label_names.h"

namespace edgewise::cli {
namespace {

v1::PredictRequest MakeRequest(const v1::PredictRequest& base, const Setting& setting, uint64_t repeat) {
  v1::PredictRequest request = base;
  request.mutable_ensemble()->set_samples(setting.samples);
  request.mutable_ensemble()->set_seed(base.ensemble().seed() + repeat);
  if (setting.cap) {
    request.mutable_budget()->set_max_density(*setting.cap);
  } else {
    request.clear_budget();
  }
  if (setting.override) *request.mutable_override() = *setting.override;
  if (setting.dense) request.set_attention(v1::DENSE);
  return request;
}

// The server counts inputs of one request; people count lines of the file.
std::string NameInput(size_t index, const absl::Status& status) {
  return absl::StrCat(
      "input ", index + 1, ": ",
      absl::StrReplaceAll(status.message(), {{"inputs[0]", "the input"}, {"inputs[1].sequence", "the input.second"}}));
}

// For token-classification: the mean over tokens.
double MutualInformation(const v1::Prediction& prediction) {
  if (prediction.tokens_size() == 0) return prediction.mutual_information();
  double sum = 0;
  int tokens = 0;
  for (const v1::TokenPrediction& token : prediction.tokens()) {
    if (token.pad()) continue;
    sum += token.mutual_information();
    ++tokens;
  }
  return tokens == 0 ? 0.0 : sum / tokens;
}

// Returns whether the answer is above its cap.
bool IsOver(const v1::EdgeReport& edges, SettingResult& row) {
  row.most_edges = std::max(row.most_edges, edges.max_sample_edges());
  if (!row.setting.cap || edges.pairs() == 0) return false;
  // As the cap is defined: the share of the pairs that the most expensive sample attends to, not the mean over samples.
  const double most = static_cast<double>(edges.max_sample_edges()) / static_cast<double>(edges.pairs());
  row.most_of_cap = std::max(row.most_of_cap, most / *row.setting.cap);
  return most > *row.setting.cap;
}

// Both texts of a pair have the cap each.
void AddEdges(size_t index, const v1::PredictResponse& response, SettingResult& row) {
  double edges = 0, pairs = 0;
  bool capped = false, over = false;
  for (const v1::Prediction& prediction : response.predictions()) {
    const v1::EdgeReport& report = prediction.edges();
    edges += report.edges();
    pairs += static_cast<double>(report.pairs());
    capped |= report.capped();
    if (!IsOver(report, row)) continue;
    over = true;
    if (!row.fault.empty()) continue;
    row.fault = absl::StrCat("input ", index + 1, ": a sample has ", Plural(report.max_sample_edges(), "edge"), " of ",
                             WithCommas(report.pairs()), " pairs, above its cap of ", 100.0 * *row.setting.cap, " %");
  }
  row.density += pairs > 0 ? edges / pairs : 0.0;
  row.edges += edges;
  row.capped += capped;
  row.over += over;
}

void AddQuality(const LabelledInput& input, const v1::PredictResponse& response, Quality& quality) {
  if (response.predictions_size() == 2) {
    quality.AddPair(response.predictions(0), response.predictions(1), input);
  } else {
    quality.Add(response.predictions(0), input);
  }
}

void AddAnswer(size_t index, const LabelledInput& input, const v1::PredictResponse& response, double dense_ms,
               SettingResult& row) {
  ++row.answered;
  AddEdges(index, response, row);
  row.mutual_information += MutualInformation(response.predictions(0));
  row.compute_ms.push_back(static_cast<double>(response.timing().compute_us()) / 1000.0);
  row.total_ms.push_back(static_cast<double>(response.timing().total_us()) / 1000.0);
  row.speed.push_back(dense_ms / std::max(row.compute_ms.back(), 1e-3));
  AddQuality(input, response, row.quality);
  AddQuality(input, response, row.repeats.back());
}

absl::Status CheckPlace(const LabelledInput& input, const v1::PredictResponse& response, bool same_input) {
  const absl::Status status = CheckLabels(input, response.predictions(0), same_input);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(input.place, ": ", status.message()));
}

std::string OverrideName(const v1::AttentionOverride& override) {
  const std::string layers = override.last_layers() > 0 ? absl::StrCat(", last ", override.last_layers()) : "";
  if (override.kind() == "block") {
    const std::string size = override.block_size() > 0 ? absl::StrCat(" of ", override.block_size()) : "";
    return absl::StrCat(override.pattern(), " blocks", size, layers);
  }
  if (override.keep() > 0) return absl::StrCat("keep ", override.keep(), layers);
  if (override.windows() > 0) return absl::StrCat("windows ", override.windows(), layers);
  return absl::StrCat("window_tokens ", override.window_tokens(), layers);
}

// The answers of all settings to one input. A setting without one has a cap below the least possible.
using Answers = std::vector<absl::StatusOr<v1::PredictResponse>>;

bool IsRefusedCap(const Setting& setting, const absl::Status& status) {
  return setting.cap && status.code() == absl::StatusCode::kInvalidArgument;
}

// The embeddings of a pair are those of its two texts, in one request. Any other pair is one input.
absl::StatusOr<v1::PredictResponse> AskPair(Client& client, v1::PredictRequest request, const v1::Input& pair) {
  *request.add_inputs()->mutable_sequence() = pair.sequence();
  *request.add_inputs()->mutable_sequence() = pair.second();
  absl::StatusOr<v1::PredictResponse> response = client.Predict(request);
  if (!response.ok() || response->predictions_size() == 2) return response;
  return absl::InternalError(
      absl::StrCat("the answer has ", response->predictions_size(), " predictions for 2 inputs"));
}

// Asks in every setting, beginning with number `turn`, so that none has always the same one before it.
absl::StatusOr<Answers> AskAll(Client& client, const std::vector<v1::PredictRequest>& requests,
                               const std::vector<Setting>& settings, bool embedding, const v1::Input& input,
                               size_t turn) {
  Answers answers(settings.size(), absl::UnknownError("not asked"));
  for (size_t i = 0; i < settings.size(); ++i) {
    const size_t s = (turn + i) % settings.size();
    const bool pair = embedding && input.has_second();
    answers[s] = pair ? AskPair(client, requests[s], input) : AskOne(client, requests[s], input);
    if (!answers[s].ok() && !IsRefusedCap(settings[s], answers[s].status())) return answers[s].status();
  }
  return answers;
}

}  // namespace

std::string Setting::Name() const {
  if (dense) return "dense";
  const std::string limit = cap ? absl::StrFormat("cap %g %%", 100.0 * *cap) : "";
  if (!override) return cap ? limit : "no cap";
  return absl::StrCat(OverrideName(*override), cap ? ", " : "", limit);
}

absl::StatusOr<Evaluation> Evaluate(Client& client, const v1::PredictRequest& base, std::vector<LabelledInput> inputs,
                                    const std::vector<Setting>& settings, uint32_t repeats,
                                    const EvaluationProgress& progress) {
  const absl::StatusOr<v1::ModelInfo> model = client.GetModel(base.model(), base.version());
  if (!model.ok()) return model.status();
  if (absl::Status status = ResolveLabelNames(*model, inputs); !status.ok()) return status;
  const bool embedding = model->task() == "embedding";
  Evaluation evaluation;
  for (const Setting& setting : settings) evaluation.rows.push_back({.setting = setting});
  for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
    std::vector<v1::PredictRequest> requests;
    for (SettingResult& row : evaluation.rows) {
      requests.push_back(MakeRequest(base, row.setting, repeat));
      row.repeats.emplace_back();
    }
    if (repeat == 0) AskAll(client, requests, settings, embedding, inputs[0].input, 0).IgnoreError();  // warms up
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (progress) progress(repeat * inputs.size() + i, repeats * inputs.size());
      const absl::StatusOr<Answers> answers =
          AskAll(client, requests, settings, embedding, inputs[i].input, repeat + i);
      if (!answers.ok()) {
        if (IsHopeless(answers.status().code())) return answers.status();
        if (evaluation.failed++ == 0) evaluation.failure = NameInput(i, answers.status());
        continue;
      }
      const v1::PredictResponse& dense = *answers->front();
      if (evaluation.first.predictions_size() == 0) {
        evaluation.first = dense;
        for (const LabelledInput& input : inputs) {  // before the time of all is spent
          if (absl::Status status = CheckPlace(input, dense, false); !status.ok()) return status;
        }
      }
      if (absl::Status status = CheckPlace(inputs[i], dense, true); !status.ok()) return status;
      const double dense_ms = static_cast<double>(dense.timing().compute_us()) / 1000.0;
      for (size_t s = 0; s < settings.size(); ++s) {
        SettingResult& row = evaluation.rows[s];
        const absl::StatusOr<v1::PredictResponse>& answer = (*answers)[s];
        if (answer.ok()) {
          AddAnswer(i, inputs[i], *answer, dense_ms, row);
        } else if (row.refused++ == 0) {
          row.refusal = NameInput(i, answer.status());
        }
      }
    }
  }
  return evaluation;
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - std::floor(at)) * (values[high] - values[low]);
}

}  // namespace edgewise::cli
