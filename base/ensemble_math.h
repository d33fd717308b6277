// The arithmetic of a self-ensemble, as edgewise/client/ensemble.h states it: of the server, which computes an
// ensemble, and of the client, which merges one. All in double, in the order of the samples; a sample is a row of
// numbers. Inline, so that the installed client library needs no other one.
#ifndef EDGEWISE_BASE_ENSEMBLE_MATH_H_
#define EDGEWISE_BASE_ENSEMBLE_MATH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace edgewise::ensemble {

template <typename Number>
using Rows = std::span<const Number* const>;  // at least one

// Of one column.
template <typename Number>
double Mean(Rows<Number> rows, size_t column) {
  double sum = 0.0;
  for (const Number* row : rows) sum += static_cast<double>(row[column]);
  return sum / static_cast<double>(rows.size());
}

// Unbiased; 0 for one sample.
inline double StandardDeviation(Rows<float> rows, size_t column, double mean) {
  if (rows.size() < 2) return 0.0;
  double squares = 0.0;
  for (const float* row : rows) {
    const double difference = static_cast<double>(row[column]) - mean;
    squares += difference * difference;
  }
  return std::sqrt(squares / (static_cast<double>(rows.size()) - 1.0));
}

// Nats. multi_label: the sum over the labels of the entropy of yes and no.
template <typename Number>
double Entropy(std::span<const Number> probabilities, bool multi_label) {
  double entropy = 0.0;
  for (const double q : probabilities) {
    if (!multi_label) {
      if (q > 0.0) entropy -= q * std::log(q);
    } else if (q > 0.0 && q < 1.0) {
      entropy -= q * std::log(q) + (1.0 - q) * std::log1p(-q);
    }
  }
  return entropy;
}

// predictive_entropy: that of the samples' mean.
inline double MutualInformation(double predictive_entropy, Rows<float> rows, size_t columns, bool multi_label) {
  double sum = 0.0;
  for (const float* row : rows) sum += Entropy(std::span(row, columns), multi_label);
  return std::max(0.0, predictive_entropy - sum / static_cast<double>(rows.size()));
}

// Sum over tokens of ln(mean over samples of their probability).
inline double LogLikelihood(Rows<double> rows, size_t tokens) {
  double likelihood = 0.0;
  for (size_t t = 0; t < tokens; ++t) likelihood += std::log(Mean(rows, t));
  return likelihood;
}

// exp of minus the mean log likelihood of a token; 1 for no tokens.
inline double Perplexity(double log_likelihood, size_t tokens) {
  return tokens == 0 ? 1.0 : std::exp(-log_likelihood / static_cast<double>(tokens));
}

// Euclidean; 1 for all zeros, so that any embedding can be divided by it.
inline double Length(std::span<const float> numbers) {
  double squares = 0.0;
  for (const double number : numbers) squares += number * number;
  return squares > 0.0 ? std::sqrt(squares) : 1.0;
}

// The first `count` indexes by falling value, ties by rising index.
inline std::vector<int32_t> LargestFirst(std::span<const float> values, size_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + static_cast<int64_t>(std::min(count, order.size()));
  std::partial_sort(order.begin(), end, order.end(),
                    [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  order.erase(end, order.end());
  return order;
}

}  // namespace edgewise::ensemble

#endif  // EDGEWISE_BASE_ENSEMBLE_MATH_H_
