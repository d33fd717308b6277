// The membership network of an SBM layer on the CPU, folded (docs/maths.md).
#ifndef EDGEWISE_KERNELS_CPU_OPS_MEMBERSHIPS_H_
#define EDGEWISE_KERNELS_CPU_OPS_MEMBERSHIPS_H_

#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/runtime/thread_pool.h"
#include "kernels/cpu/simd/kernels.h"

namespace edgewise {

// Per row and head: h = ReLU(W0 z + b0); m = sigmoid(C W1 h + C b1), with the second layer folded into the clusters; x
// or y is the factor of S times m.
class CpuMembershipWeights : public MembershipWeights {
 public:
  CpuMembershipWeights(const CpuKernels& kernels, const MembershipParameters& parameters);

  int32_t rank() const override { return rank_; }
  // Backend::ComputeMemberships on the host. `scratch` may be used by one call at a time.
  void Run(ThreadPool& pool, std::vector<float>& scratch, ConstMatrix q, ConstMatrix k, const Memberships& out) const;

 private:
  // One product of the network, packed for one table of kernels.
  struct Product {
    std::vector<float> data;
    std::vector<MembershipPanel> panels;  // of data
    int columns;                          // of all panels
    MembershipProduct view() const { return {panels.data(), columns}; }
  };
  struct Head {
    Product clusters;                // d -> k
    Product query_factor;            // k -> rank
    Product key_factor;              // without columns: as query_factor
    std::vector<float> column_sums;  // empty: bounds are norms
  };
  // weight [out, in], bias [out] or empty; zeros up to `columns` outputs and further to whole vectors.
  Product Pack(std::span<const float> weight, std::span<const float> bias, int columns, int out, int in) const;
  // Bounds of `rows` rows of x or y; norms from their squares.
  void SetBounds(const Head& head, bool query_side, const float* values, int64_t rows, float* bounds) const;

  const CpuKernels* kernels_;
  int32_t head_dim_, num_clusters_, rank_ = 0;
  Product hidden_;  // d -> d; shared by heads and sides
  std::vector<Head> heads_;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_OPS_MEMBERSHIPS_H_
