#include "bench/gpu/sampled_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace edgewise::bench {
namespace {

constexpr int64_t kRows = 8;

bool IsEdge(const HeadOperands& operands, uint32_t head, const RandomKey& key, int64_t i, int64_t j) {
  const float dot = MembershipDot(&operands.x[i * operands.rank], &operands.y[j * operands.rank], operands.rank);
  const uint64_t uniform = PairUniform(key, head, static_cast<uint32_t>(i), static_cast<uint32_t>(j));
  return uniform < EdgeThreshold(EdgeProbability(Law::kBernoulli, EdgeRate(dot, 0.0f)));
}

}  // namespace

void CompareRows(const HeadOperands& operands, float scale, uint32_t head, const RandomKey* key, RowErrors& errors) {
  const int64_t n = operands.n, d = operands.head_dim;
  std::vector<double> scores(n), sum(d);
  for (int64_t row = 0; row < std::min(n, kRows); ++row) {
    const int64_t i = std::min(n - 1, row * n / kRows + row);
    double top = -std::numeric_limits<double>::infinity(), total = 0.0;
    for (int64_t j = 0; j < n; ++j) {
      scores[j] = -std::numeric_limits<double>::infinity();
      if (key != nullptr && !IsEdge(operands, head, *key, i, j)) continue;
      double score = 0.0;
      for (int64_t t = 0; t < d; ++t) score += static_cast<double>(operands.q[i * d + t]) * operands.k[j * d + t];
      scores[j] = score * scale;
      top = std::max(top, scores[j]);
    }
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t j = 0; j < n; ++j) {
      if (!std::isfinite(scores[j])) continue;
      const double weight = std::exp(scores[j] - top);
      total += weight;
      for (int64_t t = 0; t < d; ++t) sum[t] += weight * operands.v[j * d + t];
    }
    for (int64_t t = 0; t < d; ++t) {
      const double want = total > 0.0 ? sum[t] / total : 0.0;
      const double difference = std::abs(operands.out[i * d + t] - want);
      errors.largest_value = std::max(errors.largest_value, std::abs(want));
      if (!(difference <= errors.largest_difference)) {
        errors.largest_difference = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
      }
    }
  }
}

}  // namespace edgewise::bench
