#include "client/cli/evaluate/quality.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "client/metrics/metrics.h"

namespace edgewise::cli {
namespace {

std::span<const float> Embedding(const v1::Prediction& prediction) {
  return {prediction.embedding().data(), static_cast<size_t>(prediction.embedding_size())};
}

absl::Status CheckLabel(const std::string& field, int32_t label, int classes) {
  if (label >= 0 && label < classes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", label, "; the model has the labels 0 to ", classes - 1));
}

absl::Status CheckTokenLabels(const LabelledInput& input, const v1::Prediction& prediction, bool same_input) {
  const std::vector<std::optional<int32_t>>& labels = *input.labels;
  if (same_input && labels.size() != static_cast<size_t>(prediction.tokens_size())) {
    return absl::InvalidArgumentError(absl::StrCat("labels has ", labels.size(), " entries; the answer has ",
                                                   prediction.tokens_size(),
                                                   ", one for every token or mask, those of a template included"));
  }
  int classes = 0;  // pads have none
  for (const v1::TokenPrediction& token : prediction.tokens()) classes = std::max(classes, token.probabilities_size());
  for (size_t t = 0; t < labels.size(); ++t) {
    if (!labels[t]) continue;
    if (absl::Status status = CheckLabel(absl::StrCat("labels[", t, "]"), *labels[t], classes); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHoldingLabels(const std::vector<std::optional<int32_t>>& labels, int classes) {
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string field = absl::StrCat("labels[", i, "]");
    if (!labels[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " is null, and the model is multi-label; give the labels that hold, and leave out the others"));
    }
    if (absl::Status status = CheckLabel(field, *labels[i], classes); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

template <typename Prediction>
void Quality::AddLabelled(const Prediction& prediction, int32_t label, uint32_t samples) {
  const int answer = prediction.label_id();
  labels_.push_back({label});
  answers_.push_back({answer});
  confidences_.push_back(answer < prediction.probabilities_size() ? prediction.probabilities(answer) : 0.0);
  confirmed_.push_back(label == answer);
  entropies_.push_back(prediction.predictive_entropy());
  if (samples > 1) mutual_informations_.push_back(prediction.mutual_information());
}

void Quality::AddMultiLabel(const v1::Prediction& prediction, const LabelledInput& input) {
  const std::vector<int32_t>& labels = labels_.emplace_back(HoldingLabels(input));
  answers_.push_back(AnsweredLabels(prediction));
  for (int id = 0; id < prediction.probabilities_size(); ++id) {
    const double yes = prediction.probabilities(id);
    confidences_.push_back(std::max(yes, 1.0 - yes));
    confirmed_.push_back((yes > 0.5) == std::binary_search(labels.begin(), labels.end(), id));
  }
  entropies_.push_back(prediction.predictive_entropy());
  if (prediction.samples() > 1) mutual_informations_.push_back(prediction.mutual_information());
}

void Quality::Add(const v1::Prediction& prediction, const LabelledInput& input) {
  accuracy_.Add(prediction, input);
  log_likelihood_ += prediction.log_likelihood();
  scored_tokens_ += prediction.scored_tokens();
  if (input.label) AddLabelled(prediction, *input.label, prediction.samples());
  if (input.labels && prediction.multi_label()) AddMultiLabel(prediction, input);
  for (int t = 0; t < prediction.tokens_size() && input.labels; ++t) {
    const v1::TokenPrediction& token = prediction.tokens(t);
    const std::optional<int32_t>& label = (*input.labels)[static_cast<size_t>(t)];
    if (label && !token.pad()) AddLabelled(token, *label, prediction.samples());
  }
  if (input.value && prediction.values_size() > 0) {
    given_.push_back(prediction.values(0));
    known_.push_back(*input.value);
  }
}

void Quality::AddPair(const v1::Prediction& first, const v1::Prediction& second, const LabelledInput& input) {
  if (!input.value) return;
  pairs_ = true;
  given_.push_back(Cosine(Embedding(first), Embedding(second)));
  known_.push_back(*input.value);
}

std::optional<double> Quality::Loss() const {
  if (scored_tokens_ == 0) return std::nullopt;
  return -log_likelihood_ / static_cast<double>(scored_tokens_);
}

std::optional<double> Quality::ErrorAuroc(const std::vector<double>& scores) const {
  if (scores.size() != labels_.size()) return std::nullopt;
  std::vector<uint8_t> wrong(labels_.size());
  for (size_t i = 0; i < wrong.size(); ++i) wrong[i] = labels_[i] != answers_[i];
  return Auroc(scores, wrong);
}

Measure Quality::MainMeasure() const {
  if (accuracy_.known > 0) {
    return {"accuracy", "accuracy", static_cast<double>(accuracy_.right) / static_cast<double>(accuracy_.known), true};
  }
  if (pairs_) return {"rank_correlation", "rank correlation", RankCorrelation(given_, known_)};
  if (accuracy_.valued > 0) return {"error", "error", accuracy_.off / static_cast<double>(accuracy_.valued)};
  if (scored_tokens_ > 0) return {"loss", "loss", Loss()};
  return {"", "", std::nullopt};
}

std::vector<Measure> Quality::OtherMeasures() const {
  if (accuracy_.known > 0) {
    return {{"macro_f1", "macro F1", MacroF1(labels_, answers_), true},
            {"calibration_error", "calibration error", CalibrationError(confidences_, confirmed_), true},
            {"auroc_entropy", "AUROC entropy", ErrorAuroc(entropies_)},
            {"auroc_mutual_information", "AUROC mutual information", ErrorAuroc(mutual_informations_)}};
  }
  if (pairs_) return {};
  if (accuracy_.valued > 0) return {{"rank_correlation", "rank correlation", RankCorrelation(given_, known_)}};
  if (scored_tokens_ > 0) return {{"perplexity", "perplexity", std::exp(*Loss())}};
  return {};
}

absl::Status CheckLabels(const LabelledInput& input, const v1::Prediction& prediction, bool same_input) {
  const bool tokens = prediction.tokens_size() > 0, values = prediction.values_size() > 0;
  const bool embedding = prediction.embedding_size() > 0;
  if (input.value && embedding && !input.input.has_second()) {
    return absl::InvalidArgumentError("value is there without a second text; of embeddings, pairs have a value");
  }
  if (input.value && !embedding && !values) {
    return absl::InvalidArgumentError(
        absl::StrCat("value is there, and the model answers with labels; give \"", tokens ? "labels" : "label", "\""));
  }
  const char* field = input.label ? "label" : "labels";
  if (!input.label && !input.labels) return absl::OkStatus();
  if (values || embedding) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is there, and the model answers with ",
                                                   values ? "values; give \"value\"" : "embeddings; give \"value\""));
  }
  if (input.label && tokens) {
    return absl::InvalidArgumentError("label is there, and the model labels every token; give \"labels\"");
  }
  if (prediction.multi_label()) {
    if (input.labels) return CheckHoldingLabels(*input.labels, prediction.probabilities_size());
    return absl::InvalidArgumentError(
        "label is there, and the model is multi-label; give \"labels\", a list of those that hold");
  }
  if (input.labels && !tokens) {
    return absl::InvalidArgumentError("labels is there, and the model has one label for an input; give \"label\"");
  }
  if (input.labels) return CheckTokenLabels(input, prediction, same_input);
  return CheckLabel("label", *input.label, prediction.probabilities_size());
}

}  // namespace edgewise::cli
