// Memberships in float32. A block has kTokens rows of one side (queries or keys) of one head:
//   1. LoadTokens copies the rows to shared memory, transposed.
//   2. Multiply by `hidden`, with relu.
//   3. Multiply by the head's clusters, with sigmoid.
//   4. Multiply by the head's factor: the memberships.
//   5. The bounds of the rows are added up.
// A thread has 4 outputs of 4 tokens, so a warp reads each weight that it needs once. Every element is one chain of
// multiply-adds over `in`, so that the rows beside it do not change a bit.
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/membership_kernel.h"

namespace edgewise::cuda {
namespace {

constexpr int kTokens = 16;
constexpr int kTokenGroups = kTokens / 4, kOutGroups = kMembershipOut / 4;
constexpr int kThreads = kTokenGroups * kOutGroups;

__host__ __device__ constexpr int Padded(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A thread's part of a tile: outputs out..out + 3 of tokens token..token + 3.
struct Sums {
  float at[4][4];  // [token][out]
};

__device__ inline int TokenOfThread() { return static_cast<int>(threadIdx.x) % kTokenGroups * 4; }

// in [in_rows][kTokens] in shared memory times weight [in_rows, width]; finish(first output, sums) for each thread's
// parts. `finish` may write shared memory other than `in`. Begins with a barrier.
template <typename Finish>
__device__ inline void Multiply(const float* in, int in_rows, const float* weight, int width, const Finish& finish) {
  const int token = TokenOfThread();
  __syncthreads();
  for (int out = static_cast<int>(threadIdx.x) / kTokenGroups * 4; out < width; out += kMembershipOut) {
    Sums sums = {};
#pragma unroll kMembershipIn
    for (int i = 0; i < in_rows; ++i) {
      const Floats<4> a = LoadFloats<4>(in + i * kTokens + token);
      const Floats<4> w = LoadFloats<4>(weight + static_cast<int64_t>(i) * width + out);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int o = 0; o < 4; ++o) sums.at[t][o] = fmaf(a.at[t], w.at[o], sums.at[t][o]);
      }
    }
    finish(out, sums);
  }
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// activation(sums + bias) into rows [limit][kTokens] of shared memory; outputs beyond `limit` are dropped.
template <typename Activation>
__device__ inline void Keep(const Sums& sums, const float* bias, int out, int limit, float* rows,
                            const Activation& activation) {
  if (out >= limit) return;
  const Floats<4> b = LoadFloats<4>(bias + out);
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    Floats<4> column;
#pragma unroll
    for (int t = 0; t < 4; ++t) column.at[t] = activation(sums.at[t][o] + b.at[o]);
    StoreFloats<4>(rows + (out + o) * kTokens + TokenOfThread(), column);
  }
}

// Loads z [kTokens, d] of a block, transposed, with zeros for tokens and columns beyond the last.
__device__ inline void LoadTokens(const float* z, int64_t stride, int tokens, int d, float* rows) {
  const int token = static_cast<int>(threadIdx.x) % kTokens;
  const float* row = z + token * stride;
  for (int i = static_cast<int>(threadIdx.x) / kTokens; i < Padded(d, kMembershipIn); i += kThreads / kTokens) {
    rows[i * kTokens + token] = token < tokens && i < d ? row[i] : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) MembershipKernel(const __grid_constant__ MembershipCall call) {
  __shared__ double partial[kOutGroups][kTokens];
  const int d = call.head_dim, k = call.num_clusters, rank = call.rank;
  const int d_in = Padded(d, kMembershipIn), k_in = Padded(k, kMembershipIn);
  float* hidden = reinterpret_cast<float*>(DynamicShared());  // [d_in][kTokens]
  float* wide = hidden + d_in * kTokens;                      // [max(d_in, k_in)][kTokens]: z, then memberships

  const bool query_side = blockIdx.x % 2 == 0;
  const int h = static_cast<int>(blockIdx.x / 2 % static_cast<unsigned>(call.num_heads));
  const int64_t first = static_cast<int64_t>(blockIdx.x / 2 / static_cast<unsigned>(call.num_heads)) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), call.rows - first));
  const MembershipHead head = call.heads[h];

  const int64_t stride = query_side ? call.q_stride : call.k_stride;
  LoadTokens((query_side ? call.q : call.k) + first * stride + static_cast<int64_t>(h) * d, stride, tokens, d, wide);
  Multiply(wide, d_in, call.weights, Padded(d, kMembershipOut), [&](int out, const Sums& sums) {
    Keep(sums, call.weights + call.hidden_bias, out, d_in, hidden,
         [](float v) { return v > 0.0f ? v : (v != v ? v : 0.0f); });
  });
  Multiply(hidden, d_in, call.weights + head.clusters, Padded(k, kMembershipOut), [&](int out, const Sums& sums) {
    Keep(sums, call.weights + head.cluster_bias, out, k_in, wide, [](float v) { return Sigmoid(v); });
  });

  // Bounds: norms, or the largest x_v / w_v and the sum of y_v w_v (BlockFactor). In double, and in one order.
  const bool norm = head.column_sums < 0, largest = !norm && query_side;
  const int token = TokenOfThread(), group = static_cast<int>(threadIdx.x) / kTokenGroups;
  const int64_t row = h * call.out_rows + first;
  float* values = (query_side ? call.x : call.y) + row * rank;
  double bound[4] = {};
  const auto finish = [&](int out, const Sums& sums) {
    if (out >= rank) return;
    const Floats<4> w = norm ? Floats<4>{} : LoadFloats<4>(call.weights + head.column_sums + out);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      Floats<4> part;
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        part.at[o] = sums.at[t][o];
        const double v = static_cast<double>(part.at[o]), weight = static_cast<double>(w.at[o]);
        if (largest) {
          if (weight > 0.0 && v / weight > bound[t]) bound[t] = v / weight;
        } else {
          bound[t] += v * (norm ? v : weight);
        }
      }
      if (token + t < tokens) StoreFloats<4>(values + (token + t) * rank + out, part);
    }
  };
  const float* factor = call.weights + (query_side ? head.query_factor : head.key_factor);
  Multiply(wide, k_in, factor, Padded(rank, kMembershipOut), finish);
#pragma unroll
  for (int t = 0; t < 4; ++t) partial[group][token + t] = bound[t];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= tokens) return;
  double total = partial[0][mine];
  for (int g = 1; g < kOutGroups; ++g) {
    const double part = partial[g][mine];
    total = largest ? (part > total ? part : total) : total + part;
  }
  if (norm) total = sqrt(total);
  (query_side ? call.query_bound : call.key_bound)[row + mine] = static_cast<float>(total * call.margin);
}

}  // namespace

cudaError_t ComputeMembershipRows(cudaStream_t stream, const MembershipCall& call) {
  const int d_in = Padded(call.head_dim, kMembershipIn), k_in = Padded(call.num_clusters, kMembershipIn);
  const auto floats = static_cast<size_t>((d_in + (d_in > k_in ? d_in : k_in)) * kTokens);
  const int64_t blocks = (call.rows + kTokens - 1) / kTokens * call.num_heads * 2;
  return Launch(stream, blocks, kThreads, sizeof(float) * floats, kLoaded<MembershipKernel>, call);
}

}  // namespace edgewise::cuda
