// Weights of memberships as pairs of halves, in the order in which memberships_split.cu multiplies by them.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_HALVES_H_
#define EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_HALVES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/ops/membership_kernel.h"
#include "kernels/host/membership_fold.h"

namespace edgewise::cuda {

struct MembershipHalves {
  // The parameters that follow from the weights; `multiprocessors`, rows and pointers are missing.
  SplitMembershipCall call = {};
  std::vector<uint4> weights;    // of all sides
  std::vector<SplitHead> heads;  // [heads, 2]
};

// None: heads of more than 224 columns, more than 512 of rank, or a side whose weights take more than `shared_bytes`.
std::optional<MembershipHalves> SplitIntoHalves(const MembershipParameters& parameters, const FoldedMemberships& folded,
                                                int64_t shared_bytes);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_HALVES_H_
