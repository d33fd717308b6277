// A row item's operands.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/online_softmax.h"

namespace edgewise::cuda {

inline constexpr int kMaxHeadDim = 256;

// The bias of a score, in units of ln 2. Out of line: most models have no bias.
__device__ __noinline__ inline float ScoreBias(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                               int32_t query, int32_t key) {
  return BiasOf(call, problem, head, query, key) * kLog2E;
}

// One row item's operands. Element: float, or __nv_bfloat16 where keys and values are rounded.
template <typename Element>
struct RowOperands {
  const DeviceCall& call;
  const DeviceProblem& problem;
  const RowItem& item;
  const Element* k;  // of the sequence's first token, columns of the head
  const Element* v;
  int64_t k_stride, v_stride;
  float score_scale;  // of <q, k>, in units of ln 2
  bool biased;

  __device__ RowOperands(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item)
      : call(call),
        problem(problem),
        item(item),
        score_scale(call.scale * kLog2E),
        biased(call.distance_bias != nullptr || problem.bias_length != 0) {
    if constexpr (std::is_same_v<Element, float>) {
      k_stride = call.k_stride;
      v_stride = call.v_stride;
      k = call.k;
      v = call.v;
    } else {
      k_stride = call.k16_stride;
      v_stride = call.v16_stride;
      k = call.k16;
      v = call.v16;
    }
    k += problem.first_row * k_stride + KeyHead(call, item.head) * call.head_dim;
    v += problem.first_row * v_stride + KeyHead(call, item.head) * call.value_dim;
  }

  __device__ const float* Query(int row) const {
    return call.q + (problem.query_row + item.first_query + row) * call.q_stride +
           static_cast<int64_t>(item.head) * call.head_dim;
  }

  __device__ float Bias(int row, int32_t key) const {
    return ScoreBias(call, problem, item.head, item.first_query + row, key);
  }
};

// Calls batch(begin, size, place) for the edges of a row, kBatch at a time, by one warp: list[begin..] are their keys,
// up to list[size - 1], and the first of them is edge `place` of the row. Only the last batch may have fewer. `list`:
// keys in shared memory of the warp, kBatch more than RowEdges::kMostKeys. Returns the row's edges; -1: the problem has
// been cancelled.
template <int kBatch, typename Batch>
__device__ inline int32_t ForBatches(const DeviceProblem& problem, const RowEdges& edges, uint32_t* list,
                                     const Batch& batch) {
  static_assert(kBatch <= kWarpSize);
  const int lane = ThisThread() % kWarpSize;
  int size = 0;
  int32_t taken = 0;
#pragma unroll 1
  for (int32_t from = 0; !edges.Done(from);) {
    if (CancelledForWarp(problem)) return -1;
    size = edges.Take(from, list, size);
    __syncwarp(kWholeWarp);
    const int least = edges.Done(from) ? 1 : kBatch;
    int begin = 0;
#pragma unroll 1
    for (; begin + least <= size; begin += kBatch) batch(begin, size, taken + begin);
    taken += min(begin, size);
    const uint32_t rest = lane < kBatch && begin + lane < size ? list[begin + lane] : 0;
    __syncwarp(kWholeWarp);
    size = max(size - begin, 0);
    if (lane < size) list[lane] = rest;
    __syncwarp(kWholeWarp);
  }
  return taken;
}

// A vector of a row, which a thread reads at a time: 16 bytes.
template <typename Element>
struct RowVector;
template <>
struct RowVector<float> {
  using Raw = float4;
  static constexpr int kSize = 4;
  __device__ static Raw Load(const float* p) { return __ldg(reinterpret_cast<const float4*>(p)); }
  __device__ static Raw Zero() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
  __device__ static void Unpack(const Raw& raw, float* to) {
    to[0] = raw.x;
    to[1] = raw.y;
    to[2] = raw.z;
    to[3] = raw.w;
  }
};
template <>
struct RowVector<__nv_bfloat16> {
  using Raw = uint4;
  static constexpr int kSize = 8;
  __device__ static Raw Load(const __nv_bfloat16* p) { return __ldg(reinterpret_cast<const uint4*>(p)); }
  __device__ static Raw Zero() { return make_uint4(0, 0, 0, 0); }
  __device__ static void Unpack(const Raw& raw, float* to) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[2 * w] = __uint_as_float(words[w] << 16);
      to[2 * w + 1] = __uint_as_float(words[w] & 0xFFFF0000u);
    }
  }
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_
