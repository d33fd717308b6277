#include "kernels/host/membership_fold.h"

#include <algorithm>

namespace edgewise {

FoldedMemberships FoldMemberships(const MembershipParameters& parameters) {
  const int64_t d = parameters.head_dim;
  const int64_t k = parameters.num_clusters;
  FoldedMemberships folded;
  for (int64_t head = 0; head < parameters.num_heads; ++head) {
    FoldedHead entry;
    entry.clusters.resize(k * d);
    entry.bias.resize(k);
    for (int64_t c = 0; c < k; ++c) {
      const float* cluster = parameters.clusters.data() + (head * k + c) * d;
      double bias = 0.0;
      for (int64_t o = 0; o < d; ++o) bias += static_cast<double>(cluster[o]) * parameters.bias1[o];
      entry.bias[c] = static_cast<float>(bias);
      for (int64_t i = 0; i < d; ++i) {
        double sum = 0.0;
        for (int64_t o = 0; o < d; ++o) sum += static_cast<double>(cluster[o]) * parameters.weight1[o * d + i];
        entry.clusters[c * d + i] = static_cast<float>(sum);
      }
    }
    entry.factor = FactorBlockMatrix(BlockMatrix(parameters, static_cast<int32_t>(head)), parameters.num_clusters);
    folded.rank = std::max(folded.rank, (entry.factor.rank + kDotLanes - 1) / kDotLanes * kDotLanes);
    folded.heads.push_back(std::move(entry));
  }
  return folded;
}

}  // namespace edgewise
