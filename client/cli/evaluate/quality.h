// How good the answers of a model are, where the data says what is right.
#ifndef EDGEWISE_CLIENT_CLI_EVALUATE_QUALITY_H_
#define EDGEWISE_CLIENT_CLI_EVALUATE_QUALITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/render.h"
#include "client/cli/request/inputs.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// One number about a set of answers.
struct Measure {
  const char* key;              // "macro_f1", in JSON
  const char* title;            // "macro F1", above a column
  std::optional<double> value;  // absent where it is undefined
  bool percent = false;         // shown as a share of 100
};

// Collects answers. Their kind, and what is known of the inputs, decides which measures there are:
//   labels         accuracy, macro F1, calibration error, AUROC of errors by entropy and by mutual information; of a
//                  multi-label model an answer is right where all its labels are, and every label's yes or no, by its
//                  own probability, is calibrated
//   values         error (mean absolute difference), rank correlation
//   pairs          rank correlation of their cosine with the value
//   language model loss (nats per token), perplexity
class Quality {
 public:
  // `input`'s labels fit the answer (CheckLabels).
  void Add(const v1::Prediction& prediction, const LabelledInput& input);
  // The embeddings of the two texts of a pair; `input` has its value, or adds nothing.
  void AddPair(const v1::Prediction& first, const v1::Prediction& second, const LabelledInput& input);

  bool IsKnown() const { return MainMeasure().value.has_value(); }
  // The first of the measures above. Its key is "" where nothing is known.
  Measure MainMeasure() const;
  // The others.
  std::vector<Measure> OtherMeasures() const;

  const Accuracy& accuracy() const { return accuracy_; }
  uint64_t scored_tokens() const { return scored_tokens_; }

 private:
  template <typename Prediction>  // or a token's
  void AddLabelled(const Prediction& prediction, int32_t label, uint32_t samples);
  void AddMultiLabel(const v1::Prediction& prediction, const LabelledInput& input);
  std::optional<double> Loss() const;
  std::optional<double> ErrorAuroc(const std::vector<double>& scores) const;

  Accuracy accuracy_;
  double log_likelihood_ = 0;  // language models
  uint64_t scored_tokens_ = 0;
  // One entry for every answer whose label is known; those of mutual_informations_ with several samples only.
  std::vector<std::vector<int32_t>> labels_, answers_;  // one each, or any number of a multi-label model, ascending
  std::vector<double> entropies_, mutual_informations_;
  // For each of these answers, or each of their labels: the probability that it is right, and whether it is.
  std::vector<double> confidences_;
  std::vector<uint8_t> confirmed_;
  std::vector<double> given_, known_;  // values, or cosines of pairs; and those of the data
  bool pairs_ = false;
};

// InvalidArgument, with the field, where the data knows something else than the model answers: a label that the model
// does not have, labels for another number of tokens, a value for a model that has none. `prediction` is the answer to
// `input`, or to another input where `same_input` is false: then lengths are not compared.
absl::Status CheckLabels(const LabelledInput& input, const v1::Prediction& prediction, bool same_input);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_EVALUATE_QUALITY_H_
