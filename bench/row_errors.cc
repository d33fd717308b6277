#include "bench/row_errors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/draw/draw.h"
#include "kernels/reference/reference.h"

namespace edgewise::bench {

void CompareRow(const AttentionInputs& inputs, int head, int64_t row, std::span<const int32_t> keys, ConstMatrix out,
                RowErrors& errors) {
  const int d = inputs.head_dim, first = head * d;
  std::vector<double> scores, sum(static_cast<size_t>(d), 0.0);
  double top = -std::numeric_limits<double>::infinity(), total = 0.0;
  for (const int32_t key : keys) {
    double score = 0.0;
    for (int t = first; t < first + d; ++t) score += static_cast<double>(inputs.q.row(row)[t]) * inputs.k.row(key)[t];
    scores.push_back(score * inputs.scale);
    top = std::max(top, scores.back());
  }
  for (size_t e = 0; e < keys.size(); ++e) {
    const double weight = std::exp(scores[e] - top);
    total += weight;
    for (int t = 0; t < d; ++t) sum[t] += weight * inputs.v.row(keys[e])[first + t];
  }
  for (int t = 0; t < d; ++t) {
    const double want = total > 0.0 ? sum[t] / total : 0.0;
    const double difference = std::abs(want - out.row(row)[first + t]);
    errors.largest_value = std::max(errors.largest_value, std::abs(want));
    if (!(difference <= errors.largest_difference)) {
      errors.largest_difference = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
  }
}

std::vector<int32_t> AllKeys(int64_t n) {
  std::vector<int32_t> keys(static_cast<size_t>(n));
  std::iota(keys.begin(), keys.end(), 0);
  return keys;
}

std::vector<std::vector<int32_t>> DrawnKeys(const DrawnRows& drawn, uint32_t head, std::span<const int64_t> rows,
                                            const float* x, const float* y, int64_t n, int32_t rank) {
  AttentionInputs inputs;
  inputs.memberships = {x, y, nullptr, nullptr, 0, rank};  // rows 0: every head has these
  AttentionProblem problem;
  problem.tokens = static_cast<int32_t>(n);
  problem.pattern = drawn;
  std::vector<std::vector<int32_t>> keys(rows.size());
  if (reference::UsesEvents(inputs, problem, static_cast<int>(head))) {
    for (const reference::Edge& edge : reference::DrawByEvents(inputs, problem, static_cast<int>(head))) {
      for (size_t r = 0; r < rows.size(); ++r) {
        if (rows[r] == edge.query) keys[r].push_back(edge.key);
      }
    }
    return keys;
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t j = 0; j < n; ++j) {
      const float rate = EdgeRate(MembershipDot(x + rows[r] * rank, y + j * rank, rank), drawn.exploration);
      const uint64_t uniform = PairUniform(drawn.key, head, static_cast<uint32_t>(rows[r]), static_cast<uint32_t>(j));
      if (uniform < EdgeThreshold(EdgeProbability(drawn.law, rate))) keys[r].push_back(static_cast<int32_t>(j));
    }
  }
  return keys;
}

}  // namespace edgewise::bench
