#include "bench/attention_bench_data.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace edgewise::bench {

Operands::Operands(int64_t n, int heads, int head_dim) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  const int64_t width = static_cast<int64_t>(heads) * head_dim;
  for (Floats* matrix : {&q, &k, &v}) {
    matrix->resize(static_cast<size_t>(n * width));
    for (float& value : *matrix) value = normal(random);
  }
  inputs.q = ConstMatrix(q.data(), n, width);
  inputs.k = ConstMatrix(k.data(), n, width);
  inputs.v = ConstMatrix(v.data(), n, width);
  inputs.num_heads = heads;
  inputs.head_dim = head_dim;
  inputs.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
}

SyntheticMemberships::SyntheticMemberships(int64_t n, int heads, double density) {
  std::mt19937 random(23);
  std::normal_distribution<double> normal;
  // x = u + noise, |u| = 1: the cosine of two such is about 1 / (1 + |noise|^2).
  const double noise = std::sqrt((1.0 / kMeanCosine - 1.0) / kRank);
  const double common = 1.0 / std::sqrt(static_cast<double>(kRank));
  for (Floats* side : {&x, &y}) {
    for (int64_t i = 0; i < heads * n * kRank; ++i)
      side->push_back(static_cast<float>(common + noise * normal(random)));
  }
  // The scale that gives the density, by bisection on a sample of pairs.
  std::vector<double> products;
  for (int sample = 0; sample < 20000; ++sample) {
    const int64_t i = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    const int64_t j = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    double product = 0.0;
    for (int t = 0; t < kRank; ++t) product += static_cast<double>(x[i * kRank + t]) * y[j * kRank + t];
    products.push_back(product);
  }
  double low = 0.0, high = 100.0;
  for (int step = 0; step < 60; ++step) {
    const double scale = (low + high) / 2;
    double mean = 0.0;
    for (double product : products) mean += std::min(1.0, scale * product) / static_cast<double>(products.size());
    (mean < density ? low : high) = scale;
  }
  const float root = static_cast<float>(std::sqrt(low));
  for (float& value : x) value *= root;
  for (float& value : y) value *= root;
  const auto norms = [](const Floats& side, Floats& out) {
    for (size_t i = 0; i < side.size(); i += kRank) {
      double square = 0.0;
      for (int t = 0; t < kRank; ++t) square += static_cast<double>(side[i + t]) * side[i + t];
      out.push_back(static_cast<float>(std::sqrt(square) * 1.000001));
    }
  };
  norms(x, query_bound);
  norms(y, key_bound);
  memberships = {x.data(), y.data(), query_bound.data(), key_bound.data(), n, kRank};
}

double LargestError(const AttentionInputs& inputs, const DrawnRows* drawn, ConstMatrix out) {
  const int64_t n = inputs.q.rows;
  const int d = inputs.head_dim;
  const Memberships& m = inputs.memberships;
  double largest = 0.0;
  for (int h = 0; h < inputs.num_heads; ++h) {
    for (int64_t i = 5; i < n; i += n / 8) {
      std::vector<double> scores(static_cast<size_t>(n), -INFINITY), sum(static_cast<size_t>(d), 0.0);
      double top = -INFINITY, total = 0.0;
      for (int64_t j = 0; j < n; ++j) {
        if (drawn != nullptr) {
          const float rate = EdgeRate(MembershipDot(m.x + (h * n + i) * m.rank, m.y + (h * n + j) * m.rank, m.rank),
                                      drawn->exploration);
          const uint64_t uniform =
              PairUniform(drawn->key, static_cast<uint32_t>(h), static_cast<uint32_t>(i), static_cast<uint32_t>(j));
          if (uniform >= EdgeThreshold(EdgeProbability(drawn->law, rate))) continue;
        }
        double score = 0.0;
        for (int t = 0; t < d; ++t)
          score += static_cast<double>(inputs.q.row(i)[h * d + t]) * inputs.k.row(j)[h * d + t];
        scores[j] = score * inputs.scale;
        top = std::max(top, scores[j]);
      }
      for (int64_t j = 0; j < n; ++j) {
        if (scores[j] == -INFINITY) continue;
        const double weight = std::exp(scores[j] - top);
        total += weight;
        for (int t = 0; t < d; ++t) sum[t] += weight * inputs.v.row(j)[h * d + t];
      }
      for (int t = 0; t < d; ++t) {
        const double want = total > 0.0 ? sum[t] / total : 0.0;
        largest = std::max(largest, std::abs(want - out.row(i)[h * d + t]));
      }
    }
  }
  return largest;
}

}  // namespace edgewise::bench
