#include "model/forward/result.h"

#include <algorithm>
#include <cmath>

#include "base/ensemble_math.h"
#include "model/forward/softmax.h"

namespace edgewise {
namespace {

// The numbers of the first `count` samples from `first` on.
template <typename Number>
std::vector<const Number*> Rows(const std::vector<SampleResult>& samples, uint32_t count,
                                std::vector<Number> SampleResult::*field, size_t first) {
  std::vector<const Number*> rows(count);
  for (uint32_t s = 0; s < count; ++s) rows[s] = (samples[s].*field).data() + first;
  return rows;
}

void CombineTokens(InputResult& result) {
  const size_t scored = result.sample_results[0].token_probabilities.size();
  const auto rows = Rows(result.sample_results, result.samples, &SampleResult::token_probabilities, 0);
  result.log_likelihood = ensemble::LogLikelihood(rows, scored);
  result.perplexity = ensemble::Perplexity(result.log_likelihood, scored);
  // Logits far apart, though finite, leave a token a probability of 0.
  if (!std::isfinite(result.log_likelihood) || !std::isfinite(result.perplexity)) result.status = NonFiniteOutput();
}

void CombineTokenRows(InputResult& result) {
  const auto rows = Rows(result.sample_results, result.samples, &SampleResult::token_rows, 0);
  result.token_rows.resize(result.sample_results[0].token_rows.size());
  for (size_t i = 0; i < result.token_rows.size(); ++i) {
    result.token_rows[i] = static_cast<float>(ensemble::Mean<float>(rows, i));
  }
}

void CombineRow(InputResult& result, int32_t row) {
  const size_t labels = static_cast<size_t>(result.labels), first = row * labels;
  const auto rows = Rows(result.sample_results, result.samples, &SampleResult::probabilities, first);
  const auto logits = Rows(result.sample_results, result.samples, &SampleResult::logits, first);
  std::vector<double> mean(labels);
  for (size_t c = 0; c < labels; ++c) {
    mean[c] = ensemble::Mean<float>(rows, c);
    result.probabilities[first + c] = static_cast<float>(mean[c]);
    result.logits[first + c] = static_cast<float>(ensemble::Mean<float>(logits, c));
    result.stddev[first + c] = static_cast<float>(ensemble::StandardDeviation(rows, c, mean[c]));
  }
  if (result.regression) return;
  const auto largest = std::max_element(mean.begin(), mean.end());
  if (!(*largest > 0.0) && !result.multi_label) return;  // a pad
  result.label_id[row] = static_cast<int32_t>(largest - mean.begin());
  result.predictive_entropy[row] = ensemble::Entropy<double>(mean, result.multi_label);
  result.mutual_information[row] =
      ensemble::MutualInformation(result.predictive_entropy[row], rows, labels, result.multi_label);
}

}  // namespace

SampleResult::SampleResult(const ModelConfig& config, size_t sequences, size_t rows, size_t scored_tokens, bool graph)
    : logits(rows * config.num_labels),
      probabilities(logits.size()),
      token_probabilities(scored_tokens),
      layers(sequences * config.num_hidden_layers, std::vector<HeadCounts>(config.num_attention_heads)),
      graph(graph ? layers.size() : 0) {}

void CombineSamples(InputResult& result) {
  const size_t size = static_cast<size_t>(result.rows) * result.labels;
  result.probabilities.assign(size, 0.0f);
  result.logits.assign(size, 0.0f);
  result.stddev.assign(size, 0.0f);
  result.label_id.assign(result.rows, -1);
  result.predictive_entropy.assign(result.rows, 0.0);
  result.mutual_information.assign(result.rows, 0.0);
  for (int32_t row = 0; row < result.rows; ++row) CombineRow(result, row);
  CombineTokens(result);
  CombineTokenRows(result);

  uint64_t edges = 0, isolated = 0;
  double expected = 0.0;
  result.max_sample_edges = 0;
  result.capped = false;
  for (uint32_t s = 0; s < result.samples; ++s) {
    const SampleResult& sample = result.sample_results[s];
    edges += sample.edges;
    isolated += sample.isolated;
    result.max_sample_edges = std::max(result.max_sample_edges, sample.edges);
    result.capped |= sample.capped;
    for (const auto& layer : sample.layers) {
      for (const HeadCounts& head : layer) expected += head.expected;
    }
  }
  result.edges = static_cast<double>(edges) / result.samples;
  result.isolated_queries = static_cast<double>(isolated) / result.samples;
  result.expected_edges = expected / result.samples;
  result.density = result.edges / static_cast<double>(result.pairs);
}

uint32_t ConvergedSamples(const InputResult& result, double tolerance) {
  const std::vector<SampleResult>& samples = result.sample_results;
  // The sums of ensemble::Mean, in the same order, carried from k to k + 1.
  std::vector<double> sums(static_cast<size_t>(result.rows) * result.labels, 0.0);
  for (uint32_t k = 1; k <= samples.size(); ++k) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += samples[k - 1].probabilities[i];
    if (k < 4) continue;
    bool converged = true;
    const auto rows = Rows(samples, k, &SampleResult::probabilities, 0);
    const auto check = [&](size_t index) {
      const double deviation = ensemble::StandardDeviation(rows, index, sums[index] / k);
      converged &= deviation / std::sqrt(static_cast<double>(k)) < tolerance;
    };
    for (size_t first = 0; converged && first < sums.size(); first += result.labels) {
      if (result.regression || result.multi_label) {
        for (int32_t c = 0; converged && c < result.labels; ++c) check(first + c);
      } else {
        size_t leading = first;
        for (size_t i = first + 1; i < first + result.labels; ++i) {
          if (sums[i] / k > sums[leading] / k) leading = i;
        }
        check(leading);
      }
    }
    if (converged) return k;
  }
  return 0;
}

}  // namespace edgewise
