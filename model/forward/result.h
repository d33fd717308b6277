// What a forward pass says of one input.
#ifndef EDGEWISE_MODEL_FORWARD_RESULT_H_
#define EDGEWISE_MODEL_FORWARD_RESULT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "model/input/input.h"

namespace edgewise {

// One forward pass. Rows: 1, or every position for token-classification (rows of pads are zero). causal-lm: the one row
// is the distribution of the token that follows the text.
struct SampleResult {
  std::vector<float> logits;                // [rows, labels]
  std::vector<float> probabilities;         // [rows, labels]; regression: the values
  std::vector<double> token_probabilities;  // causal-lm: p(x_t | x_<t) of the scored tokens of all windows, in order
  // [layers, a pair's second sequence after the first][heads]; key degrees are of positions, [length].
  std::vector<std::vector<HeadCounts>> layers;
  std::vector<std::vector<HeadEdges>> graph;  // as layers, by position; empty: not wanted, or in InputResult::graph
  uint64_t edges = 0;                         // over all layers and heads
  uint64_t isolated = 0;                      // likewise
  bool capped = false;
};

// The self-ensemble of one input (docs/promises.md, promise 3).
struct InputResult {
  absl::Status status;  // INTERNAL: the model gave a number that is not finite; CANCELLED: dropped. Else OK.

  int32_t rows = 0;  // 1, or positions for token-classification
  int32_t labels = 0;
  bool regression = false;                 // the labels are values: no label_id (-1), no entropies (0)
  std::vector<float> probabilities;        // [rows, labels] mean over samples; regression: of the values
  std::vector<float> logits;               // [rows, labels] mean over samples
  std::vector<float> stddev;               // [rows, labels] of the probabilities, unbiased
  std::vector<int32_t> label_id;           // [rows]; -1 at pads
  std::vector<double> predictive_entropy;  // [rows] nats
  std::vector<double> mutual_information;  // [rows] nats

  // causal-lm: sum over scored tokens of ln(mean over samples of p(x_t | x_<t)), and exp of minus its mean; 0 scored
  // tokens: 0 and 1. Always finite where the status is OK.
  double log_likelihood = 0.0;
  double perplexity = 1.0;

  uint32_t samples = 0;  // that the answer is made of
  double edges = 0.0;    // mean per sample
  uint64_t max_sample_edges = 0;
  uint64_t pairs = 0;
  double density = 0.0;
  bool capped = false;
  double isolated_queries = 0.0;             // mean per sample
  double expected_edges = 0.0;               // when asked for, mean per sample
  std::vector<SampleResult> sample_results;  // [samples], in order
  std::optional<Graph> graph;                // when asked for
};

// Mean, spread and information of the first `result.samples` entries of result.sample_results, whose number and layout
// are set; fills everything derived from them, the status where that is not finite. Arithmetic: docs/ensembles.md.
void CombineSamples(InputResult& result);

// The first k in [4, result.sample_results.size()] whose standard error s_k / sqrt(k) of the leading label of the first
// k samples is below `tolerance` (for token-classification: of every token's; for regression: of every value); 0: none
// yet. rows, labels and regression are set.
uint32_t ConvergedSamples(const InputResult& result, double tolerance);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_RESULT_H_
