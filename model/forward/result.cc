#include "model/forward/result.h"

#include <algorithm>
#include <cmath>

#include "model/forward/softmax.h"

namespace edgewise {
namespace {

// The entropy of one distribution over the labels; with `multi_label`, the sum over the labels of that of yes and no.
double Entropy(const double* q, int32_t count, bool multi_label) {
  double entropy = 0.0;
  for (int32_t c = 0; c < count; ++c) {
    if (!multi_label) {
      if (q[c] > 0.0) entropy -= q[c] * std::log(q[c]);
    } else if (q[c] > 0.0 && q[c] < 1.0) {
      entropy -= q[c] * std::log(q[c]) + (1.0 - q[c]) * std::log1p(-q[c]);
    }
  }
  return entropy;
}

// Mean over the first `count` samples of element `index` of a field: double sums in sample order.
template <typename Field>
double Mean(const std::vector<SampleResult>& samples, uint32_t count, Field field, size_t index) {
  double sum = 0.0;
  for (uint32_t s = 0; s < count; ++s) sum += (samples[s].*field)[index];
  return sum / count;
}

double StandardDeviation(const std::vector<SampleResult>& samples, uint32_t count, size_t index, double mean) {
  if (count < 2) return 0.0;
  double squares = 0.0;
  for (uint32_t s = 0; s < count; ++s) {
    const double difference = samples[s].probabilities[index] - mean;
    squares += difference * difference;
  }
  return std::sqrt(squares / (count - 1));
}

// ln of the mean probability of every scored token, summed in order.
void CombineTokens(InputResult& result) {
  const size_t scored = result.sample_results[0].token_probabilities.size();
  result.log_likelihood = 0.0;
  for (size_t t = 0; t < scored; ++t) {
    result.log_likelihood +=
        std::log(Mean(result.sample_results, result.samples, &SampleResult::token_probabilities, t));
  }
  result.perplexity = scored == 0 ? 1.0 : std::exp(-result.log_likelihood / static_cast<double>(scored));
  // Logits far apart, though finite, leave a token a probability of 0.
  if (!std::isfinite(result.log_likelihood) || !std::isfinite(result.perplexity)) result.status = NonFiniteOutput();
}

void CombineRow(InputResult& result, int32_t row) {
  const int32_t labels = result.labels;
  const size_t first = static_cast<size_t>(row) * labels;
  std::vector<double> mean(labels);
  for (int32_t c = 0; c < labels; ++c) {
    mean[c] = Mean(result.sample_results, result.samples, &SampleResult::probabilities, first + c);
    result.probabilities[first + c] = static_cast<float>(mean[c]);
    result.logits[first + c] =
        static_cast<float>(Mean(result.sample_results, result.samples, &SampleResult::logits, first + c));
    result.stddev[first + c] =
        static_cast<float>(StandardDeviation(result.sample_results, result.samples, first + c, mean[c]));
  }
  if (result.regression) return;
  const auto largest = std::max_element(mean.begin(), mean.end());
  if (!(*largest > 0.0) && !result.multi_label) return;  // a pad
  result.label_id[row] = static_cast<int32_t>(largest - mean.begin());
  result.predictive_entropy[row] = Entropy(mean.data(), labels, result.multi_label);
  double sample_entropy = 0.0;
  for (uint32_t s = 0; s < result.samples; ++s) {
    const auto begin = result.sample_results[s].probabilities.begin() + static_cast<int64_t>(first);
    const std::vector<double> probabilities(begin, begin + labels);
    sample_entropy += Entropy(probabilities.data(), labels, result.multi_label);
  }
  result.mutual_information[row] = std::max(0.0, result.predictive_entropy[row] - sample_entropy / result.samples);
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
  // The sums of Mean, in the same order, carried from k to k + 1.
  std::vector<double> sums(static_cast<size_t>(result.rows) * result.labels, 0.0);
  for (uint32_t k = 1; k <= samples.size(); ++k) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += samples[k - 1].probabilities[i];
    if (k < 4) continue;
    bool converged = true;
    const auto check = [&](size_t index) {
      const double deviation = StandardDeviation(samples, k, index, sums[index] / k);
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
