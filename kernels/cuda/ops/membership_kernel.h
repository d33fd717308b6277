// Memberships of queries and keys: one kernel from rows of q and k to rows of x and y.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_
#define EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace edgewise::cuda {

// Weights lie transposed, [in, out]: `in` is zero-padded to multiples of kMembershipIn, `out` of kMembershipOut, biases
// like `out`.
inline constexpr int kMembershipIn = 8;
inline constexpr int kMembershipOut = 64;

// The weights of one head, in device memory.
struct MembershipHead {
  const float* clusters;      // [d, k]
  const float* cluster_bias;  // [k]
  const float* query_factor;  // [k, rank]
  const float* key_factor;    // [k, rank]
  const float* column_sums;   // [rank], padded like `out`; null: bounds are norms
};

struct MembershipCall {
  const float* q;  // [rows, heads * head_dim]
  const float* k;
  int64_t q_stride, k_stride, rows;
  const float* hidden;       // [d, d]
  const float* hidden_bias;  // [d]
  const MembershipHead* heads;
  int32_t num_heads, head_dim, num_clusters;
  int32_t rank;        // multiple of 4
  float* x;            // [heads, out_rows, rank], 16-byte aligned, as y
  float* y;            // [heads, out_rows, rank]
  float* query_bound;  // [heads, out_rows]
  float* key_bound;    // [heads, out_rows]
  int64_t out_rows;
  double margin;  // on bounds
};

// head_dim <= 256, num_clusters <= 1024.
cudaError_t ComputeMembershipRows(cudaStream_t stream, const MembershipCall& call);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_
