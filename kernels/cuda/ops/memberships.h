// PrepareMemberships and ComputeMemberships of Backend, in float32 in every precision: drawn edges must not depend on
// the precision.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIPS_H_
#define EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIPS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// Finished when the call returns.
absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(const std::shared_ptr<Device>& device,
                                                                      const MembershipParameters& parameters);

// Enqueues on the device's stream.
absl::Status ComputeMemberships(const Device& device, const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                const Memberships& out);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIPS_H_
