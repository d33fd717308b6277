#include "client/cli/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/connection.h"
#include "client/cli/format.h"

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
  if (setting.dense) {
    request.set_attention(v1::DENSE);
    request.clear_override();
  }
  return request;
}

// The server counts inputs of one request; people count lines of the file.
std::string NameInput(size_t index, const absl::Status& status) {
  return absl::StrCat("input ", index + 1, ": ", absl::StrReplaceAll(status.message(), {{"inputs[0]", "the input"}}));
}

// Of token-classification: mean over tokens.
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

void AddEdges(size_t index, const v1::EdgeReport& edges, SettingResult& row) {
  row.density += edges.density();
  row.edges += edges.edges();
  row.capped += edges.capped();
  row.most_edges = std::max(row.most_edges, edges.max_sample_edges());
  if (!row.setting.cap || edges.pairs() == 0) return;
  // As the cap is defined: the share of the pairs that the most expensive sample attends to, not the mean over samples.
  const double most = static_cast<double>(edges.max_sample_edges()) / static_cast<double>(edges.pairs());
  row.most_of_cap = std::max(row.most_of_cap, most / *row.setting.cap);
  if (most <= *row.setting.cap) return;
  if (row.over++ > 0) return;
  row.fault = absl::StrCat("input ", index + 1, ": a sample has ", Plural(edges.max_sample_edges(), "edge"), " of ",
                           WithCommas(edges.pairs()), " pairs, above its cap of ", 100.0 * *row.setting.cap, " %");
}

void AddAnswer(size_t index, const LabelledInput& input, const v1::PredictResponse& response, double dense_ms,
               SettingResult& row) {
  const v1::Prediction& prediction = response.predictions(0);
  ++row.answered;
  AddEdges(index, prediction.edges(), row);
  row.mutual_information += MutualInformation(prediction);
  row.compute_ms.push_back(static_cast<double>(response.timing().compute_us()) / 1000.0);
  row.total_ms.push_back(static_cast<double>(response.timing().total_us()) / 1000.0);
  row.speed.push_back(dense_ms / std::max(row.compute_ms.back(), 1e-3));
  row.quality.Add(prediction, input);
  row.repeats.back().Add(prediction, input);
}

// The answers of all settings to one input. A setting without one has a cap below the least possible.
using Answers = std::vector<absl::StatusOr<v1::PredictResponse>>;

bool IsRefusedCap(const Setting& setting, const absl::Status& status) {
  return setting.cap && status.code() == absl::StatusCode::kInvalidArgument;
}

// Asks in every setting, beginning with number `turn`, so that none has always the same one before it.
absl::StatusOr<Answers> AskAll(Client& client, const std::vector<v1::PredictRequest>& requests,
                               const std::vector<Setting>& settings, const v1::Input& input, size_t turn) {
  Answers answers(settings.size(), absl::UnknownError("not asked"));
  for (size_t i = 0; i < settings.size(); ++i) {
    const size_t s = (turn + i) % settings.size();
    answers[s] = AskOne(client, requests[s], input);
    if (!answers[s].ok() && !IsRefusedCap(settings[s], answers[s].status())) return answers[s].status();
  }
  return answers;
}

}  // namespace

std::string Setting::Name() const {
  if (dense) return "dense";
  return cap ? absl::StrFormat("cap %g %%", 100.0 * *cap) : "no cap";
}

void Quality::Add(const v1::Prediction& prediction, const LabelledInput& input) {
  accuracy.Add(prediction, input);
  log_likelihood += prediction.log_likelihood();
  scored_tokens += prediction.scored_tokens();
}

const char* Quality::Measure() const {
  if (accuracy.known > 0) return "accuracy";
  if (accuracy.valued > 0) return "error";
  return scored_tokens > 0 ? "loss" : "";
}

double Quality::Value() const {
  if (accuracy.known > 0) return static_cast<double>(accuracy.right) / static_cast<double>(accuracy.known);
  if (accuracy.valued > 0) return accuracy.off / static_cast<double>(accuracy.valued);
  return scored_tokens > 0 ? -log_likelihood / static_cast<double>(scored_tokens) : 0.0;
}

absl::StatusOr<Evaluation> Evaluate(Client& client, const v1::PredictRequest& base,
                                    const std::vector<LabelledInput>& inputs, const std::vector<Setting>& settings,
                                    uint32_t repeats, const EvaluationProgress& progress) {
  Evaluation evaluation;
  for (const Setting& setting : settings) evaluation.rows.push_back({.setting = setting});
  for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
    std::vector<v1::PredictRequest> requests;
    for (SettingResult& row : evaluation.rows) {
      requests.push_back(MakeRequest(base, row.setting, repeat));
      row.repeats.emplace_back();
    }
    if (repeat == 0) AskAll(client, requests, settings, inputs[0].input, 0).IgnoreError();  // warms up
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (progress) progress(repeat * inputs.size() + i, repeats * inputs.size());
      const absl::StatusOr<Answers> answers = AskAll(client, requests, settings, inputs[i].input, repeat + i);
      if (!answers.ok()) {
        if (IsHopeless(answers.status().code())) return answers.status();
        if (evaluation.failed++ == 0) evaluation.failure = NameInput(i, answers.status());
        continue;
      }
      const v1::PredictResponse& dense = *answers->front();
      if (evaluation.first.predictions_size() == 0) evaluation.first = dense;
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
