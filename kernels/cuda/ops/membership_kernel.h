// Memberships of queries and keys: kernels from rows of q and k to rows of x and y.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_
#define EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace edgewise::cuda {

// The operands of any of the kernels.
struct MembershipRows {
  const float* q;  // [rows, heads * head_dim]
  const float* k;
  int64_t q_stride, k_stride, rows;
  int32_t num_heads, head_dim, num_clusters;
  int32_t rank;        // multiple of 16
  float* x;            // [heads, out_rows, rank], 16-byte aligned, as y
  float* y;            // [heads, out_rows, rank]
  float* query_bound;  // [heads, out_rows]
  float* key_bound;    // [heads, out_rows]
  int64_t out_rows;
  double margin;  // on bounds
};

// ---- Weights as float32 (memberships.cu): any shape with head_dim <= 256, num_clusters <= 1024. ----

// Weights lie transposed, [in, out]: `in` is zero-padded to multiples of kMembershipIn, `out` of kMembershipOut, biases
// like `out`.
inline constexpr int kMembershipIn = 8;
inline constexpr int kMembershipOut = 64;

// Where the weights of one head are among all weights.
struct MembershipHead {
  int64_t clusters;      // [d, k]
  int64_t cluster_bias;  // [k]
  int64_t query_factor;  // [k, rank]
  int64_t key_factor;    // [k, rank]
  int64_t column_sums;   // [rank], padded like `out`; -1: bounds are norms
};

struct MembershipCall : MembershipRows {
  const float* weights;  // begin with those of the hidden layer [d, d]
  int64_t hidden_bias;   // where its biases are [d]
  const MembershipHead* heads;
};

cudaError_t ComputeMembershipRows(cudaStream_t stream, const MembershipCall& call);

// ---- Weights as split halves (memberships_split.cu), where they fit into shared memory: membership_halves.h. ----

enum class MembershipBound : int32_t { kNorm, kLargest, kSum };  // |x|; the largest x_v / w_v; the sum of y_v w_v

// One side (queries or keys) of one head.
struct SplitHead {
  int64_t first;             // of its weights among all, in uint4; membership_halves.cc says what lies where
  int32_t size;              // of them
  int32_t cluster_exponent;  // the clusters are multiplied by 2 to the power of this
  float factor_scale;        // and sums of the last product by this, at the end
  MembershipBound bound;
};

// A step is 16 columns of a product's input, a tile 8 columns of its output. Fragments are those of MmaHalf.
struct SplitLayout {
  int32_t most_steps;      // of the kernel: its registers hold a row of this many
  int32_t rank_tiles;      // of the kernel: columns of x and y that it computes at a time
  int32_t steps;           // of head_dim; even
  int32_t cluster_steps;   // of the clusters
  int32_t floats, factor;  // where biases and fragments of the factor begin, in uint4
};

struct SplitMembershipCall : MembershipRows {
  SplitLayout layout;
  const uint4* weights;
  const SplitHead* heads;   // [heads, 2]: queries, then keys
  int32_t hidden_exponent;  // the hidden weights are multiplied by 2 to the power of this
  int32_t most_weights;     // of a side, in uint4
  int32_t multiprocessors;  // of the device
};

cudaError_t ComputeSplitMembershipRows(cudaStream_t stream, const SplitMembershipCall& call);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_MEMBERSHIP_KERNEL_H_
