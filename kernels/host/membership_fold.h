// The membership network of one layer, folded at load into the form that every backend computes.
#ifndef EDGEWISE_KERNELS_HOST_MEMBERSHIP_FOLD_H_
#define EDGEWISE_KERNELS_HOST_MEMBERSHIP_FOLD_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host/factorization.h"

namespace edgewise {

// Per row z of one head: h = ReLU(W0 z + b0); m = sigmoid(clusters h + bias), the second layer folded into the
// clusters; then x or y = the factor of S times m.
struct FoldedHead {
  std::vector<float> clusters;  // [k, d]: C W1
  std::vector<float> bias;      // [k]: C b1
  BlockFactor factor;
};

struct FoldedMemberships {
  int32_t rank = 0;  // of x and y of every head: that of the largest factor, rounded up to a multiple of kDotLanes
  std::vector<FoldedHead> heads;
};

FoldedMemberships FoldMemberships(const MembershipParameters& parameters);

// Factor of all bounds, so that their products bound inner products summed in float32, whose error grows with the rank.
inline double BoundMargin(int32_t rank) { return 1.0 + 1e-5 + 2e-9 * rank; }

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_HOST_MEMBERSHIP_FOLD_H_
