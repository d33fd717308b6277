// The attention of a decoder's step: a block has one head of one row. A warp takes every eighth group of 32 keys; the
// groups' results are added up in the order of keys.
#ifndef EDGEWISE_KERNELS_CUDA_DECODE_ATTENTION_CUH_
#define EDGEWISE_KERNELS_CUDA_DECODE_ATTENTION_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/product.cuh"

namespace edgewise::cuda::decode {

inline constexpr int kGroupKeys = 32;
static_assert(KvPage::kTokens % kGroupKeys == 0);

__device__ inline void Unpack(const uint4& raw, float (&to)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    to[2 * w] = __uint_as_float(words[w] << 16);
    to[2 * w + 1] = __uint_as_float(words[w] & 0xFFFF0000u);
  }
}

// The largest number, and the sums, of the threads of a warp that have the same columns: every kLanes-th.
template <int kLanes>
__device__ inline float LargestOfKeys(float largest) {
#pragma unroll
  for (int other = kLanes; other < kWarpSize; other *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, other));
  }
  return largest;
}
template <int kLanes>
__device__ inline void SumKeys(float& weight, float (&sums)[8]) {
#pragma unroll
  for (int other = kLanes; other < kWarpSize; other *= 2) {
    weight += __shfl_xor_sync(kWholeWarp, weight, other);
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] += __shfl_xor_sync(kWholeWarp, sums[e], other);
  }
}

// kLanes threads share a key, 8 columns each. Heads of more than 64 columns have more keys on their way than registers
// of two blocks.
template <int kLanes>
__global__ void __launch_bounds__(kThreads, kLanes <= 8 ? 2 : 1)
    AttentionKernel(const __grid_constant__ DecodeState state, int32_t reach, int64_t layer) {
  constexpr int kAtOnce = kWarpSize / kLanes;   // keys of a warp
  constexpr int kSteps = kGroupKeys / kAtOnce;  // of a group
  constexpr int kDim = 8 * kLanes;
  __shared__ float values[kWarps][kDim];
  __shared__ OnlineSoftmax states[kWarps];
  StartNext();
  Wait();
  const auto r = static_cast<int32_t>(blockIdx.x) / state.heads, head = static_cast<int32_t>(blockIdx.x) % state.heads;
  if (r >= state.count[0]) return;
  const DecodeRow row = state.rows[r];
  const int32_t dim = state.page.head_dim, of_keys = head / (state.heads / state.page.heads);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int column = lane % kLanes * 8;
  const bool inside = column < dim;
  float query[8];
  const float* const q = state.q + (int64_t{r} * state.heads + head) * dim + column;
#pragma unroll
  for (int e = 0; e < 8; ++e) query[e] = inside ? q[e] * (state.score_scale * kLog2E) : 0.0f;
  const int32_t first_key = reach < row.keys ? row.keys - 1 - reach : 0;
  const int32_t first_group = first_key / kGroupKeys, groups = (row.keys + kGroupKeys - 1) / kGroupKeys;
  OnlineSoftmax all;
  float value = 0.0f;  // of column `thread`
  for (int32_t base = first_group; base < groups; base += kWarps) {
    const int32_t group = base + warp;
    if (group < groups) {
      const int32_t first = group * kGroupKeys;
      const auto* const page =
          reinterpret_cast<const __nv_bfloat16*>(state.pages[row.first_page + first / KvPage::kTokens] + layer);
      const __nv_bfloat16* const keys = page + state.page.Keys(of_keys) + first % KvPage::kTokens * dim + column;
      const __nv_bfloat16* const rows = page + state.page.Values(of_keys) + first % KvPage::kTokens * dim + column;
      const auto load = [&](const __nv_bfloat16* from, int step, uint4& to) {
        const int key = step * kAtOnce + lane / kLanes;
        to = inside && first + key < row.keys ? *reinterpret_cast<const uint4*>(from + key * dim)
                                              : make_uint4(0, 0, 0, 0);
      };
      float scores[kSteps], largest = -INFINITY;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint4 raw;
        load(keys, step, raw);
        float key[8], score = 0.0f;
        Unpack(raw, key);
#pragma unroll
        for (int e = 0; e < 8; ++e) score = fmaf(query[e], key[e], score);
#pragma unroll
        for (int other = 1; other < kLanes; other *= 2) score += __shfl_xor_sync(kWholeWarp, score, other);
        const int32_t place = first + step * kAtOnce + lane / kLanes;
        scores[step] = place >= first_key && place < row.keys ? score : -INFINITY;
        largest = fmaxf(largest, scores[step]);
      }
      OnlineSoftmax of_group;
      of_group.Raise(LargestOfKeys<kLanes>(largest));
      float sums[8] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint4 raw;
        load(rows, step, raw);
        float of_key[8];
        Unpack(raw, of_key);
        const float weight = of_group.Weight(scores[step]);
        of_group.sum += weight;
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[e] = fmaf(weight, of_key[e], sums[e]);
      }
      SumKeys<kLanes>(of_group.sum, sums);
      if (lane < kLanes) {
#pragma unroll
        for (int e = 0; e < 8; ++e) values[warp][column + e] = sums[e];
      }
      if (lane == 0) states[warp] = of_group;
    }
    __syncthreads();
    if (thread < dim) {
      for (int w = 0; w < kWarps && base + w < groups; ++w) {
        const MergedSoftmax merged = Merge(all, states[w]);
        value = value * merged.of_first + values[w][thread] * merged.of_second;
        all = merged.state;
      }
    }
    __syncthreads();
  }
  if (thread < dim) {
    state.attended[(int64_t{r} * state.heads + head) * dim + thread] =
        __float2bfloat16_rn(value * all.Normalizer(true));
  }
}

}  // namespace edgewise::cuda::decode

#endif  // EDGEWISE_KERNELS_CUDA_DECODE_ATTENTION_CUH_
