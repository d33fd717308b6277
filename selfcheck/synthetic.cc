#include "selfcheck/synthetic.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace edgewise::selfcheck {

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

double ScaleToDensity(std::span<const double> products, double density) {
  double low = 0.0, high = 100.0;
  for (int step = 0; step < 60; ++step) {
    const double scale = (low + high) / 2;
    double mean = 0.0;
    for (double product : products) mean += std::min(1.0, scale * product) / static_cast<double>(products.size());
    (mean < density ? low : high) = scale;
  }
  return low;
}

SyntheticMemberships::SyntheticMemberships(int64_t n, int heads, double density, int rank) {
  std::mt19937 random(23);
  std::normal_distribution<double> normal;
  // x = u + noise, |u| = 1: the cosine of two such is about 1 / (1 + |noise|^2).
  const double noise = std::sqrt((1.0 / kMeanCosine - 1.0) / rank);
  const double common = 1.0 / std::sqrt(static_cast<double>(rank));
  for (Floats* side : {&x, &y}) {
    for (int64_t i = 0; i < heads * n * rank; ++i) side->push_back(static_cast<float>(common + noise * normal(random)));
  }
  // The scale that gives the density on a sample of pairs.
  std::vector<double> products;
  for (int sample = 0; sample < 20000; ++sample) {
    const int64_t i = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    const int64_t j = static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    double product = 0.0;
    for (int t = 0; t < rank; ++t) product += static_cast<double>(x[i * rank + t]) * y[j * rank + t];
    products.push_back(product);
  }
  const float root = static_cast<float>(std::sqrt(ScaleToDensity(products, density)));
  for (float& value : x) value *= root;
  for (float& value : y) value *= root;
  const auto norms = [rank](const Floats& side, Floats& out) {
    for (size_t i = 0; i < side.size(); i += static_cast<size_t>(rank)) {
      double square = 0.0;
      for (int t = 0; t < rank; ++t) square += static_cast<double>(side[i + t]) * side[i + t];
      out.push_back(static_cast<float>(std::sqrt(square) * 1.000001));
    }
  };
  norms(x, query_bound);
  norms(y, key_bound);
  memberships = {x.data(), y.data(), query_bound.data(), key_bound.data(), n, rank};
}

}  // namespace edgewise::selfcheck
