// The tile kernel in bf16 on tensor cores, laid out as FlashAttention-2: a warp has 16 neighbouring queries, and
// scores, weights and sums stay in registers. For each tile of keys:
//   1. StartTile copies the keys and the values to shared memory while the warp computes.
//   2. Dense heads draw or read their edges (DenseItems::Next).
//   3. ScoreTile multiplies queries and keys; AddBiases adds biases.
//   4. HideTile or MaskTile hides the pairs that are no edges.
//   5. WeighTile turns scores into weights and rescales the sums.
//   6. AddValues adds the weighted values.
// At the end WriteRows divides by the sums of the weights.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/tiles_fragment.cuh"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/attention/tiles_stage.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"

namespace edgewise::cuda::tiles_bf16 {

// Keys of a tile, as registers allow.
template <int kValueDim>
inline constexpr int kKeys = kValueDim <= 128 ? 128 : 64;

// Queries are held in registers where their width is known, and not with the widest sums.
template <int kSteps, int kValueDim>
inline constexpr int kHeld = kValueDim <= 128 ? kSteps : 0;

// Dynamic shared memory: queries, keys of the tile, values of the tile. Held queries leave their place to the keys.
template <int kWarps, int kSteps, int kValueDim>
inline size_t SharedBytes(int head_dim, int value_dim) {
  const int rows = kHeld<kSteps, kValueDim> > 0 ? 0 : kWarps * kWarpQueries;
  return sizeof(__nv_bfloat16) * ((rows + kKeys<kValueDim>)*Stride(head_dim) + kKeys<kValueDim> * Stride(value_dim));
}

// scores = queries times keys, in bf16 steps of 16 columns, of half the keys where no row of the warp sees the others.
// kHeld > 0: the queries are held in `held`.
template <int kHeld, int kKeyTiles>
__device__ inline void ScoreTile(const uint32_t (&held)[kHeld > 0 ? kHeld : 1][4], const __nv_bfloat16* queries,
                                 const __nv_bfloat16* keys, int steps, int stride, int seen,
                                 float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  const auto add_step = [&](int step, const uint32_t* query) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      if (n == kKeyTiles / 2 && seen <= n * 8) break;
      uint32_t key[4];
      LoadMatrices<false>(keys + n * 8 * stride + step * kStep, key);
      MmaBf16(scores[n], query, key);
      MmaBf16(scores[n + 1], query, key + 2);
    }
  };
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int step = 0; step < kHeld; ++step) add_step(step, held[step]);
  } else {
    for (int step = 0; step < steps; ++step) {
      uint32_t query[4];
      LoadMatrices<false>(queries + step * kStep, query);
      add_step(step, query);
    }
  }
}

// sums += rounded weights times values, but for steps of keys that no row of the warp sees.
template <int kKeyTiles, int kValueTiles>
__device__ inline void AddValues(const float (&weights)[kKeyTiles][4], const __nv_bfloat16* values, int stride,
                                 int seen, int value_dim, float (&sums)[kValueTiles][4]) {
#pragma unroll
  for (int step = 0; step < kKeyTiles / 2; ++step) {
    if (step * kStep >= seen) break;
    const float(&low)[4] = weights[2 * step];
    const float(&high)[4] = weights[2 * step + 1];
    const uint32_t weight[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]), PackBf16(high[0], high[1]),
                                PackBf16(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 2) {
      if (n * 8 >= value_dim) break;
      uint32_t value[4];
      LoadMatrices<true>(values + step * kStep * stride + n * 8, value);
      MmaBf16(sums[n], weight, value);
      MmaBf16(sums[n + 1], weight, value + 2);
    }
  }
}

// Blocks on a multiprocessor at once, as registers allow; for blocks of one warp, as shared memory allows.
constexpr int BlocksAtOnce(int warps, int steps, int value_dim, bool masked) {
  if (masked) return 2;
  if (warps > 1) return steps > 0 && value_dim <= 16 ? 4 : value_dim <= 64 ? 3 : 2;
  return steps > 0 && value_dim <= 32 ? 12 : 8;
}

// kSteps: of 16 columns of q and k; 0: any number. kValueDim >= value_dim. Items: ListedItems or DenseItems.
template <typename Items, int kWarps, int kSteps, int kValueDim>
__global__ void __launch_bounds__(kTileThreads<kWarps>, BlocksAtOnce(kWarps, kSteps, kValueDim, Items::kMasked))
    AttendTilesBf16(const __grid_constant__ DeviceCall call) {
  constexpr int kTile = kKeys<kValueDim>, kInRegisters = kHeld<kSteps, kValueDim>;
  __shared__ typename Items::template Lists<kTile> lists;
  const auto& item = Items::template Get<kWarps>(call);
  const DeviceProblem& problem = call.problems[item.problem];
  KeySpan span;
  if (Items::Skip(call, problem, item) || !FindKeySpan<kWarps, kTile>(call, item, span) || Cancelled(problem)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int first_row = warp * kWarpQueries + lane / 4, first_column = lane % 4 * 2;
  const int stride = Stride(call.head_dim), value_stride = Stride(call.value_dim);
  auto* const queries = reinterpret_cast<__nv_bfloat16*>(DynamicShared());
  __nv_bfloat16* const keys = queries + (kInRegisters > 0 ? 0 : kWarps * kWarpQueries * stride);
  __nv_bfloat16* const values = keys + kTile * stride;

  LoadLimits<kWarps>(item, span, lists);
  LoadTileKeys<kWarps>(item, span, span.first_tile, lists);
  StageQueries<kWarps>(
      call, [&](int row) { return row < RowsOf(item) ? QueryPlace(call, problem, item, row) : -1; }, queries);
  __syncthreads();
  const LimitRange range = FindLimitRange<kWarps>(item, lists, warp, lane);
  const __nv_bfloat16* const own_queries = queries + warp * kWarpQueries * stride + RowsFirst(lane, stride);
  uint32_t held[kInRegisters > 0 ? kInRegisters : 1][4];
  if constexpr (kInRegisters > 0) {
#pragma unroll
    for (int step = 0; step < kInRegisters; ++step) LoadMatrices<false>(own_queries + step * kStep, held[step]);
    __syncthreads();  // the queries have been read
  }

  Items items(call, item, warp);
  OnlineSoftmax states[2];
  float sums[kValueDim / 8][4] = {};
  const auto start_keys = [&](int tile) {
    StartTile<kWarps, 2 * kSteps>(lists.keys[tile & 1],
                                  KeysOf(call, problem, item, call.k16, call.k16_stride, call.k16_head_stride),
                                  call.head_dim, keys);
  };
  // Values are on their way while the scores are computed, the next keys while the values are summed.
  start_keys(span.first_tile);
  for (int tile = span.first_tile; tile * kTile < range.item_most; ++tile) {
    StartTile<kWarps, kValueDim / 8>(lists.keys[tile & 1],
                                     ValuesOf(call, problem, item, call.v16, call.v16_stride, call.v16_head_stride),
                                     call.value_dim, values);
    LoadTileKeys<kWarps>(item, span, tile + 1, lists);
    const int seen = min(range.warp_most - tile * kTile, kTile);  // the same for all threads of a warp
    if (seen > 0) items.Next(tile, lists);
    WaitForTile();
    float scores[kTile / 8][4];
    if (seen > 0) {
      ScoreTile<kInRegisters>(held, own_queries, keys + ColumnsFirst(lane, stride),
                              kSteps > 0 ? kSteps : Steps(call.head_dim), stride, seen, scores);
    }
    __syncthreads();  // the keys have been read
    start_keys(tile + 1);
    if (seen > 0) {
      AddBiases(call, problem, item, lists, tile, first_row, first_column, 1.0f / call.scale, scores);
      if constexpr (Items::kMasked) {
        HideTile(lists, first_row, first_column, scores);
      } else if (range.warp_start > tile * kTile || range.warp_least < (tile + 1) * kTile) {
        MaskTile(lists, tile, first_row, first_column, scores);
      }
      float shrink[2];
      WeighTile(call.scale * kLog2E, scores, states, shrink);
#pragma unroll
      for (int n = 0; n < kValueDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] *= shrink[i / 2];
      }
    }
    WaitForTile();
    if (seen > 0) AddValues(scores, values + RowsFirst(lane, value_stride), value_stride, seen, call.value_dim, sums);
    __syncthreads();  // the values have been read
  }
  __pipeline_wait_prior(0);
  items.Finish(lists);
  WriteRows<true, kWarps>(call, problem, item, span, lists, first_row, first_column, states, sums);
}

}  // namespace edgewise::cuda::tiles_bf16

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_
