#include "bench/membership_network.h"

#include <cmath>
#include <random>

namespace edgewise::bench {

MembershipNetwork::MembershipNetwork(int heads, int head_dim) : heads_(heads), head_dim_(head_dim) {
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  const auto fill = [&](selfcheck::Floats& values, size_t size, float scale) {
    values.resize(size);
    for (float& value : values) value = scale * normal(random);
  };
  const auto d = static_cast<size_t>(head_dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  fill(weight0_, d * d, scale);
  fill(weight1_, d * d, scale);
  fill(bias_, d, 0.0f);
  // Small clusters, as initialised.
  fill(clusters_, static_cast<size_t>(heads) * kClusters * d, 0.3f * scale);
}

MembershipParameters MembershipNetwork::parameters() const {
  return {heads_, head_dim_, kClusters, weight0_, bias_, weight1_, bias_, clusters_, {}};
}

}  // namespace edgewise::bench
