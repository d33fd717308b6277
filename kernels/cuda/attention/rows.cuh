// Shared by the warps of the row kernel: the operands of an item, a row's edges in batches, a row's softmax.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/rounded.cuh"

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
  uint32_t k_stride, v_stride;  // bytes
  float score_scale;            // of <q, k>, in units of ln 2

  __device__ RowOperands(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item)
      : call(call), problem(problem), item(item), score_scale(call.scale * kLog2E) {
    const auto of_head = [&](const Element* rows, int64_t stride, int64_t head_stride, uint32_t& bytes) {
      bytes = static_cast<uint32_t>(stride * static_cast<int64_t>(sizeof(Element)));
      return rows + problem.first_row * stride + KeyHead(call, item.head) * head_stride;
    };
    if constexpr (std::is_same_v<Element, float>) {
      k = of_head(call.k, call.k_stride, call.head_dim, k_stride);
      v = of_head(call.v, call.v_stride, call.value_dim, v_stride);
    } else {
      k = of_head(call.k16, call.k16_stride, call.k16_head_stride, k_stride);
      v = of_head(call.v16, call.v16_stride, call.v16_head_stride, v_stride);
    }
  }

  __device__ int64_t QueryPlace(int row) const {
    return (problem.query_row + item.first_query + row) * call.q_stride +
           static_cast<int64_t>(item.head) * call.head_dim;
  }
  __device__ const float* Query(int row) const { return call.q + QueryPlace(row); }
  __device__ OutRow Out(int row) const {
    return {call, problem.out_row + item.first_query + row - problem.first_query, item.head};
  }

  // The addition to the score of edge `place` of a row, whose key with its flag is `entry`, and how often it counts.
  __device__ void LookUp(const RowEdges& edges, int row, uint32_t entry, int32_t place, float& bias,
                         float& times) const {
    if (call.distance_bias != nullptr || problem.bias_length != 0) {
      bias = ScoreBias(call, problem, item.head, item.first_query + row, static_cast<int32_t>(entry & ~kParallelFlag));
    }
    if (HasMultiplicity(problem)) {
      times = static_cast<float>(edges.Multiplicity(entry, place, TauOf(call, problem)));
    }
  }
};

// 16 bytes of row `key` of some matrix. `from`: of row 0.
template <typename Vector>
__device__ inline Vector LoadOfRow(const void* from, uint32_t key, uint32_t stride) {
  static_assert(sizeof(Vector) == 16);
#if defined(EDGEWISE_CUDA_EMULATED)
  const uint64_t offset = uint64_t{key} * stride;
#else
  uint64_t offset;  // as above; in a loop, the compiler would take a factor of 64 bits
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(key), "r"(stride));
#endif
  return __ldg(reinterpret_cast<const Vector*>(static_cast<const char*>(from) + offset));
}

// Calls batch(begin, count, place) for the edges of a row, kBatch at a time, by one warp: list[begin..] are their keys,
// `count` of them, and the first is edge `place` of the row. Only the last batch has fewer; its last key is repeated up
// to kBatch, so that what is read there is a key. `list`: keys in shared memory of the warp, kBatch more than
// RowEdges::kMostKeys. Returns the row's edges; -1: the problem has been cancelled.
template <int kBatch, typename Batch>
__device__ inline int32_t ForBatches(const DeviceProblem& problem, const RowEdges& edges, uint32_t* list,
                                     const Batch& batch) {
  static_assert(kBatch <= kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  int size = 0;
  int32_t taken = 0;
  __syncwarp(kWholeWarp);  // the list of the row before has been read
#pragma unroll 1
  for (int32_t from = 0; !edges.Done(from);) {
    if (CancelledForWarp(problem)) return -1;
    size = edges.Take(from, list, size);
    __syncwarp(kWholeWarp);
    const int rest = size % kBatch, whole = size - rest;
    const bool last = edges.Done(from);
    if (last && lane < kBatch - rest && size > 0) list[size + lane] = list[size - 1];
    __syncwarp(kWholeWarp);
    const int end = last ? size : whole;
#pragma unroll 1
    for (int begin = 0; begin < end; begin += kBatch) batch(begin, min(end - begin, kBatch), taken + begin);
    taken += end;
    if (last) break;
    const uint32_t moved = lane < rest ? list[whole + lane] : 0;
    __syncwarp(kWholeWarp);
    if (lane < rest) list[lane] = moved;
    size = rest;
  }
  return taken;
}

// The softmax of a row by a warp. Weights are relative to 2^unit, a score that is raised only where one is more than
// kHeadroom above it. A score that is NaN or +infinity makes the sum NaN; scores that are all -infinity leave it 0.
struct RowSoftmax {
  static constexpr float kHeadroom = 16.0f;  // weights are at most 2^16
  float unit = 0.0f, limit = -INFINITY;
  float sum = 0.0f;  // the thread's part

  // Takes note of the thread's largest score; threads whose numbers differ below kStep have the same. Where the unit is
  // raised, the caller's sums so far are to be multiplied by what rescale is called with.
  template <int kStep, typename Rescale>
  __device__ void Raise(float score, const Rescale& rescale) {
    if (!__any_sync(kWholeWarp, score > limit)) return;
#pragma unroll
    for (int step = kStep; step < kWarpSize; step *= 2) {
      score = fmaxf(score, __shfl_xor_sync(kWholeWarp, score, step));
    }
    const float factor = limit == -INFINITY ? 0.0f : Exp2(unit - score);
    unit = score;
    limit = score + kHeadroom;
    sum *= factor;
    rescale(factor);
  }
  __device__ float Weight(float score, float times) {
    const float weight = Exp2(score - unit) * times;
    sum += weight;
    return weight;
  }
  // The factor that turns the weighted sum of values into the result: NaN where there are edges but their largest score
  // is not finite, zero where there are none.
  template <int kStep>
  __device__ float Normalizer(bool has_edges) const {
    float all = sum;
#pragma unroll
    for (int step = kStep; step < kWarpSize; step *= 2) all += __shfl_xor_sync(kWholeWarp, all, step);
    if (!has_edges) return 0.0f;
    return all > 0.0f ? 1.0f / all : NAN;
  }
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROWS_CUH_
