#include "client/ensemble_math.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace edgewise::internal {

Moments ComputeMoments(std::span<const float* const> samples, size_t width) {
  const double count = static_cast<double>(samples.size());
  Moments moments;
  moments.mean.assign(width, 0.0);
  moments.stddev.assign(width, 0.0f);
  for (size_t c = 0; c < width; ++c) {
    double sum = 0.0;
    for (const float* row : samples) sum += static_cast<double>(row[c]);
    moments.mean[c] = sum / count;
    if (samples.size() < 2) continue;
    double squares = 0.0;
    for (const float* row : samples) {
      const double difference = static_cast<double>(row[c]) - moments.mean[c];
      squares += difference * difference;
    }
    moments.stddev[c] = static_cast<float>(std::sqrt(squares / (count - 1.0)));
  }
  return moments;
}

double Entropy(std::span<const double> probabilities, bool multi_label) {
  double sum = 0.0;
  for (double q : probabilities) {
    if (!multi_label) {
      if (q > 0.0) sum += q * std::log(q);
    } else if (q > 0.0 && q < 1.0) {
      sum += q * std::log(q) + (1.0 - q) * std::log1p(-q);
    }
  }
  return sum == 0.0 ? 0.0 : -sum;  // never -0
}

double MutualInformation(double predictive_entropy, std::span<const float* const> samples, size_t width,
                         bool multi_label) {
  double sum = 0.0;
  std::vector<double> wide(width);
  for (const float* row : samples) {
    std::copy(row, row + width, wide.begin());
    sum += Entropy(wide, multi_label);
  }
  return std::max(0.0, predictive_entropy - sum / static_cast<double>(samples.size()));
}

double LogLikelihood(std::span<const double* const> samples, size_t tokens) {
  double likelihood = 0.0;
  for (size_t t = 0; t < tokens; ++t) {
    double sum = 0.0;
    for (const double* sample : samples) sum += sample[t];
    likelihood += std::log(sum / static_cast<double>(samples.size()));
  }
  return likelihood;
}

double Perplexity(double log_likelihood, size_t tokens) {
  return tokens == 0 ? 1.0 : std::exp(-log_likelihood / static_cast<double>(tokens));
}

int ArgMax(std::span<const double> values) {
  if (values.empty()) return 0;
  return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<int> LargestFirst(std::span<const float> values, size_t count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(std::min(count, order.size()));
  return order;
}

double SumFromMean(double mean, uint32_t samples, double unit) { return std::round(mean * samples / unit) * unit; }

}  // namespace edgewise::internal
