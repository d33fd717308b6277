// The result of a forward pass for one input.
#ifndef EDGEWISE_MODEL_FORWARD_RESULT_H_
#define EDGEWISE_MODEL_FORWARD_RESULT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/token_choice.h"
#include "model/config/config.h"
#include "model/input/input.h"

namespace edgewise {

// One forward pass. Rows: OutputRows; those of pads are zero. causal-lm: the one row is the distribution of the token
// that follows the text. Labels: ModelConfig::num_labels.
struct SampleResult {
  // With room for `sequences` sequences and `rows` rows of logits, all zero.
  SampleResult(const ModelConfig& config, size_t sequences, size_t rows, size_t scored_tokens, bool graph);
  SampleResult() = default;

  std::vector<float> logits;                // [rows, labels]
  std::vector<float> probabilities;         // [rows, labels]; regression, embedding: the values
  std::vector<double> token_probabilities;  // causal-lm: p(x_t | x_<t) of the scored tokens of all windows, in order
  std::vector<TokenAlternatives> alternatives;  // when wanted: of the same tokens' distributions, before them
  std::vector<float> token_rows;  // embedding, when wanted: [valid tokens, hidden_size], normed, before the pooling
  // [layers, a pair's second sequence after the first][heads]; key degrees are of positions, [length].
  std::vector<std::vector<HeadCounts>> layers;
  std::vector<std::vector<HeadEdges>> graph;  // as layers, by position; empty: not wanted, or in InputResult::graph
  uint64_t edges = 0;                         // over all layers and heads
  uint64_t isolated = 0;                      // likewise
  bool capped = false;
};

// The self-ensemble of one input (docs/promises.md, promise 3).
struct InputResult {
  absl::Status status;  // INTERNAL: the model gave a number that is not finite; CANCELLED: a stop was requested

  int32_t rows = 0;  // OutputRows
  int32_t labels = 0;
  bool regression = false;                 // the labels are values (GivesValues): no label_id (-1), no entropies (0)
  bool multi_label = false;                // ModelConfig::multi_label: entropies are sums over the labels
  std::vector<float> probabilities;        // [rows, labels] mean over samples; of the values where these are given
  std::vector<float> logits;               // [rows, labels] mean over samples
  std::vector<float> stddev;               // [rows, labels] of the probabilities, unbiased
  std::vector<int32_t> label_id;           // [rows] of the largest mean; -1 at pads
  std::vector<double> predictive_entropy;  // [rows] nats
  std::vector<double> mutual_information;  // [rows] nats

  std::vector<float> token_rows;  // when wanted: SampleResult::token_rows, mean over samples

  // causal-lm: sum over scored tokens of ln(mean over samples of p(x_t | x_<t)), and exp of minus its mean; 0 and 1
  // without scored tokens. Finite where the status is OK.
  double log_likelihood = 0.0;
  double perplexity = 1.0;

  uint32_t samples = 0;
  double edges = 0.0;  // mean per sample
  uint64_t max_sample_edges = 0;
  uint64_t pairs = 0;
  double density = 0.0;
  bool capped = false;
  double isolated_queries = 0.0;             // mean per sample
  double expected_edges = 0.0;               // when wanted, mean per sample
  std::vector<SampleResult> sample_results;  // [samples], in order
  std::optional<Graph> graph;                // when wanted
};

// multi_label: whether a label of this probability is one of the answer's.
inline bool SaysYes(float probability) { return probability > 0.5f; }

// Fills every field that is derived from the first `result.samples` samples, and the status where one is not finite.
// `rows`, `labels`, `regression`, `multi_label`, `samples` and `pairs` are set. Arithmetic: docs/ensembles.md.
void CombineSamples(InputResult& result);

// The first k in [4, result.sample_results.size()] for which the standard error s_k / sqrt(k) over the first k samples
// is below `tolerance`: that of the leading label, of every token's leading label, or of every label (multi_label) or
// value (regression). 0: none yet. `rows`, `labels`, `regression` and `multi_label` are set.
uint32_t ConvergedSamples(const InputResult& result, double tolerance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_RESULT_H_
