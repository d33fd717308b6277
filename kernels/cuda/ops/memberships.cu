// Memberships. A block has kTokens rows of one side (queries or keys) of one head:
//   1. LoadTokens copies the rows to shared memory, transposed.
//   2. Multiply by `hidden`, with relu.
//   3. Multiply by the head's clusters, with sigmoid.
//   4. Multiply by the head's factor: the memberships.
//   5. The bounds of the rows are added up.
// Weights stream through shared memory in panels. A thread has 4 outputs of 4 tokens. Every element is one chain of
// multiply-adds over `in`, so that neither the rows beside it nor kTokens change a bit.
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/membership_kernel.h"

namespace edgewise::cuda {
namespace {

constexpr int kPanelRows = 32;  // of `in`
constexpr int kOutGroups = kMembershipOut / 4;
constexpr int kPanelFloats = kPanelRows * kMembershipOut;
// Blocks of 32 tokens as long as they need no more shared memory than this, else of 16.
constexpr size_t kSharedGoal = size_t{96} << 10;

__host__ __device__ constexpr int ThreadsFor(int tokens) { return tokens / 4 * kOutGroups; }

__host__ __device__ constexpr int Padded(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A thread's part of a tile: outputs out..out + 3 of tokens token..token + 3.
struct Sums {
  float at[4][4];  // [token][out]
};

// in [in_rows][kTokens] in shared memory times weight [in_rows, width]; finish(first output, sums) for each thread's
// part of every tile. `finish` may write shared memory other than `in` and `panel`. Begins with a barrier.
template <int kTokens, typename Finish>
__device__ inline void Multiply(const float* in, int in_rows, const float* weight, int width, float* panel,
                                const Finish& finish) {
  constexpr int kThreads = ThreadsFor(kTokens);
  constexpr int kLoads = kPanelFloats / 4 / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int token = thread % (kTokens / 4) * 4, out = thread / (kTokens / 4) * 4;
  const int panels = (in_rows + kPanelRows - 1) / kPanelRows, tiles = width / kMembershipOut;

  // While one panel is multiplied the next is on its way.
  Floats<4> next[kLoads];
  const auto fetch = [&](int tile, int first) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int index = thread + l * kThreads;
      const int row = first + index / kOutGroups;
      const int64_t place = static_cast<int64_t>(row) * width + tile * kMembershipOut + index % kOutGroups * 4;
      next[l] = row < in_rows ? LoadFloats<4>(weight + place) : Floats<4>{};
    }
  };
  fetch(0, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    Sums sums = {};
    for (int p = 0; p < panels; ++p) {
      const int first = p * kPanelRows;
      __syncthreads();
#pragma unroll
      for (int l = 0; l < kLoads; ++l) StoreFloats<4>(panel + (thread + l * kThreads) * 4, next[l]);
      __syncthreads();
      if (p + 1 < panels) {
        fetch(tile, first + kPanelRows);
      } else if (tile + 1 < tiles) {
        fetch(tile + 1, 0);
      }
      const int count = min(kPanelRows, in_rows - first);  // a multiple of kMembershipIn
      for (int i = 0; i < count; i += kMembershipIn) {
#pragma unroll
        for (int step = 0; step < kMembershipIn; ++step) {
          const Floats<4> a = LoadFloats<4>(in + (first + i + step) * kTokens + token);
          const Floats<4> w = LoadFloats<4>(panel + (i + step) * kMembershipOut + out);
#pragma unroll
          for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int o = 0; o < 4; ++o) sums.at[t][o] = fmaf(a.at[t], w.at[o], sums.at[t][o]);
          }
        }
      }
    }
    finish(tile * kMembershipOut + out, sums);
  }
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// activation(sums + bias) into rows [limit][kTokens] of shared memory; outputs beyond `limit` are dropped.
template <int kTokens, typename Activation>
__device__ inline void Keep(const Sums& sums, const float* bias, int out, int limit, float* rows,
                            const Activation& activation) {
  const int token = static_cast<int>(threadIdx.x) % (kTokens / 4) * 4;
  if (out >= limit) return;
  const Floats<4> b = LoadFloats<4>(bias + out);
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    Floats<4> column;
#pragma unroll
    for (int t = 0; t < 4; ++t) column.at[t] = activation(sums.at[t][o] + b.at[o]);
    StoreFloats<4>(rows + (out + o) * kTokens + token, column);
  }
}

// Loads z [kTokens, d] of a block, transposed, with zeros for tokens and columns beyond the last.
template <int kTokens>
__device__ inline void LoadTokens(const float* z, int64_t stride, int tokens, int d, float* rows) {
  constexpr int kStep = ThreadsFor(kTokens) / kTokens;
  const int token = static_cast<int>(threadIdx.x) % kTokens;
  const float* row = z + token * stride;
  const int padded = Padded(d, kMembershipIn);
  for (int i = static_cast<int>(threadIdx.x) / kTokens; i < padded; i += kStep) {
    rows[i * kTokens + token] = token < tokens && i < d ? row[i] : 0.0f;
  }
}

template <int kTokens>
__global__ void __launch_bounds__(ThreadsFor(kTokens)) MembershipKernel(const __grid_constant__ MembershipCall call) {
  const int d = call.head_dim, k = call.num_clusters, rank = call.rank;
  const int d_in = Padded(d, kMembershipIn), k_in = Padded(k, kMembershipIn);
  float* panel = reinterpret_cast<float*>(DynamicShared());
  float* hidden = panel + kPanelFloats;   // [d_in][kTokens]
  float* wide = hidden + d_in * kTokens;  // [max(d_in, k_in)][kTokens]: z, then memberships

  const bool query_side = blockIdx.x % 2 == 0;
  const int h = static_cast<int>(blockIdx.x / 2 % static_cast<unsigned>(call.num_heads));
  const int64_t first = static_cast<int64_t>(blockIdx.x / 2 / static_cast<unsigned>(call.num_heads)) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), call.rows - first));
  const MembershipHead head = call.heads[h];

  const int64_t stride = query_side ? call.q_stride : call.k_stride;
  LoadTokens<kTokens>((query_side ? call.q : call.k) + first * stride + static_cast<int64_t>(h) * d, stride, tokens, d,
                      wide);
  Multiply<kTokens>(wide, d_in, call.hidden, Padded(d, kMembershipOut), panel, [&](int out, const Sums& sums) {
    Keep<kTokens>(sums, call.hidden_bias, out, d_in, hidden,
                  [](float v) { return v > 0.0f ? v : (v != v ? v : 0.0f); });
  });
  Multiply<kTokens>(hidden, d_in, head.clusters, Padded(k, kMembershipOut), panel, [&](int out, const Sums& sums) {
    Keep<kTokens>(sums, head.cluster_bias, out, k_in, wide, [](float v) { return Sigmoid(v); });
  });

  // Bounds: norms, or the largest x_v / w_v and the sum of y_v w_v (BlockFactor). In double, and in one order.
  const bool largest = head.column_sums != nullptr && query_side;
  const int token = static_cast<int>(threadIdx.x) % (kTokens / 4) * 4;
  const int group = static_cast<int>(threadIdx.x) / (kTokens / 4);
  const int64_t row = h * call.out_rows + first;
  float* values = (query_side ? call.x : call.y) + row * rank;
  double bound[4] = {};
  const auto finish = [&](int out, const Sums& sums) {
    if (out >= rank) return;
    const bool norm = head.column_sums == nullptr;
    const Floats<4> w = norm ? Floats<4>{} : LoadFloats<4>(head.column_sums + out);
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
  Multiply<kTokens>(wide, k_in, query_side ? head.query_factor : head.key_factor, Padded(rank, kMembershipOut), panel,
                    finish);
  double* partial = reinterpret_cast<double*>(panel);  // [kOutGroups][kTokens]
  __syncthreads();
#pragma unroll
  for (int t = 0; t < 4; ++t) partial[group * kTokens + token + t] = bound[t];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= tokens) return;
  double total = partial[mine];
  for (int g = 1; g < kOutGroups; ++g) {
    const double part = partial[g * kTokens + mine];
    total = largest ? (part > total ? part : total) : total + part;
  }
  if (head.column_sums == nullptr) total = sqrt(total);
  (query_side ? call.query_bound : call.key_bound)[row + mine] = static_cast<float>(total * call.margin);
}

size_t SharedBytes(const MembershipCall& call, int tokens) {
  const int d_in = Padded(call.head_dim, kMembershipIn), k_in = Padded(call.num_clusters, kMembershipIn);
  return sizeof(float) * static_cast<size_t>(kPanelFloats + (d_in + (d_in > k_in ? d_in : k_in)) * tokens);
}

template <int kTokens>
cudaError_t LaunchTokens(cudaStream_t stream, const MembershipCall& call) {
  const int64_t blocks = (call.rows + kTokens - 1) / kTokens * call.num_heads * 2;
  return Launch(stream, blocks, ThreadsFor(kTokens), SharedBytes(call, kTokens), kLoaded<MembershipKernel<kTokens>>,
                call);
}

}  // namespace

cudaError_t ComputeMembershipRows(cudaStream_t stream, const MembershipCall& call) {
  return SharedBytes(call, 32) <= kSharedGoal ? LaunchTokens<32>(stream, call) : LaunchTokens<16>(stream, call);
}

}  // namespace edgewise::cuda
