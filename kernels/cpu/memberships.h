// The membership network of an SBM layer on the CPU, folded (docs/maths.md).
#ifndef EDGEWISE_KERNELS_CPU_MEMBERSHIPS_H_
#define EDGEWISE_KERNELS_CPU_MEMBERSHIPS_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"

namespace edgewise {

// Per row and head: h = ReLU(W0 z + b0); m = sigmoid(C W1 h + C b1), with the second layer folded into the clusters; x
// or y is the factor of S times m.
class CpuMembershipWeights : public MembershipWeights {
 public:
  static absl::StatusOr<std::unique_ptr<CpuMembershipWeights>> Create(const CpuKernels& kernels,
                                                                      const MembershipParameters& parameters);

  int32_t rank() const override { return rank_; }
  // Backend::ComputeMemberships on the host.
  // `scratch` may be used by one call at a time.
  void Run(ThreadPool& pool, std::vector<float>& scratch, ConstMatrix q, ConstMatrix k, const Memberships& out) const;

 private:
  struct Head {
    std::unique_ptr<CpuLinear> clusters;      // d -> k, sigmoid
    std::unique_ptr<CpuLinear> query_factor;  // k -> rank
    std::unique_ptr<CpuLinear> key_factor;    // null: as query_factor
    std::vector<float> column_sums;           // empty: bounds are norms
  };
  // At most 64 rows of one side of one head. hidden [rows, head_dim] and memberships [rows, clusters] are scratch.
  void RunBlock(const Head& head, bool query_side, ConstMatrix z, Matrix hidden, Matrix memberships, float* out,
                float* bound) const;

  const CpuKernels* kernels_ = nullptr;
  int32_t head_dim_ = 0, num_clusters_ = 0, rank_ = 0;
  std::unique_ptr<CpuLinear> hidden_;  // d -> d, ReLU; shared by heads and sides
  std::vector<Head> heads_;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_MEMBERSHIPS_H_
