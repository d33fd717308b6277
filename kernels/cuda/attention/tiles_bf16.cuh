// The tile kernel in bf16 on tensor cores, laid out as FlashAttention-2: a warp has 16 neighbouring queries, and
// scores, weights and sums stay in registers. For each tile of keys:
//   1. StartTile copies the keys and the values to shared memory while the warp computes.
//   2. Dense heads draw or read their edges (DenseItems::Next).
//   3. ScoreTile multiplies queries and keys; AddBiases adds biases.
//   4. HideTile or MaskTile hides the pairs that are no edges.
//   5. WeighTile turns scores into weights and rescales the sums.
//   6. AddValues adds the weighted values.
// At the end WriteRows divides by the sums of the weights.
//
// With g = lane / 4 and t = lane % 4 a thread has the queries g and g + 8 of its warp and, of every 8 keys or value
// columns, those at 2t and 2t + 1.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/attention/tiles_stage.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"

namespace edgewise::cuda::tiles_bf16 {

inline constexpr int kKeyTiles = kTileKeys / 8;      // 8 keys each
inline constexpr int kKeySteps = kTileKeys / kStep;  // of the product with the values

// Dynamic shared memory: queries, keys of the tile, values of the tile.
template <int kWarps>
inline size_t SharedBytes(int head_dim, int value_dim) {
  return sizeof(__nv_bfloat16) *
         ((kWarps * kWarpQueries + kTileKeys) * Stride(head_dim) + kTileKeys * Stride(value_dim));
}

// Where a lane's row of LoadMatrices begins, among 16 rows by 16 columns: row block by row block for A operands and
// transposed B operands, column block by column block for B operands from rows of keys.
__device__ inline int RowsFirst(int lane, int stride) { return lane % 16 * stride + lane / 16 * 8; }
__device__ inline int ColumnsFirst(int lane, int stride) {
  return (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

// scores = queries times keys, in bf16 steps of 16 columns. kHeld > 0: the queries are held in `held`.
template <int kHeld>
__device__ inline void ScoreTile(const uint32_t (&held)[kHeld > 0 ? kHeld : 1][4], const __nv_bfloat16* queries,
                                 const __nv_bfloat16* keys, int steps, int stride, float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  const auto add_step = [&](int step, const uint32_t* query) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
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

// Adds the biases of a tile to its scaled scores; by whole warps.
__device__ inline void AddBiases(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const TileLists& lists, int tile, int first_row, int first_column,
                                 float (&scores)[kKeyTiles][4]) {
  if (call.distance_bias == nullptr && problem.bias_length == 0) return;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    __syncwarp();  // so that the biases of other keys take no registers
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i / 2 * 8, place = n * 8 + first_column + i % 2;
      if (tile * kTileKeys + place >= lists.limits[row]) continue;
      const float bias =
          BiasOf(call, problem, HeadOf(item, row), item.first_query + QueryOf(item, row), lists.keys[tile & 1][place]);
      scores[n][i] = fmaf(bias, kLog2E, scores[n][i]);
    }
  }
}

// Hides the keys before each row's start and beyond its limit.
__device__ inline void MaskTile(const TileLists& lists, int tile, int first_row, int first_column,
                                float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int hidden = lists.starts[first_row + half * 8] - tile * kTileKeys - first_column;
    const int seen = lists.limits[first_row + half * 8] - tile * kTileKeys - first_column;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      if (n * 8 < hidden || n * 8 >= seen) scores[n][2 * half] = kNoScore;
      if (n * 8 + 1 < hidden || n * 8 + 1 >= seen) scores[n][2 * half + 1] = kNoScore;
    }
  }
}

// Hides the pairs that are no edges.
template <typename Lists>
__device__ inline void HideTile(const Lists& lists, int first_row, int first_column, float (&scores)[kKeyTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint64_t edges = lists.edges[first_row + half * 8] >> first_column;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      if ((edges >> (8 * n) & 1) == 0) scores[n][2 * half] = kNoScore;
      if ((edges >> (8 * n + 1) & 1) == 0) scores[n][2 * half + 1] = kNoScore;
    }
  }
}

// Turns scores into weights and rescales the sums. A tile in which a row sees no key changes no bit of the row: the
// largest score stays, so `shrink` is 1 and every weight 0. A state's sum is of the thread's own keys.
template <int kValueTiles>
__device__ inline void WeighTile(float (&scores)[kKeyTiles][4], OnlineSoftmax (&states)[2],
                                 float (&sums)[kValueTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = kNoScore;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 2));
    const float shrink = states[half].Raise(largest);
    states[half].sum *= shrink;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      sums[n][2 * half] *= shrink;
      sums[n][2 * half + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      float& low = scores[n][2 * half];
      float& high = scores[n][2 * half + 1];
      low = states[half].Weight(low);
      high = states[half].Weight(high);
      states[half].sum += low;
      states[half].sum += high;
    }
  }
}

// sums += rounded weights times values, but for steps of keys that no row of the warp sees.
template <int kValueTiles>
__device__ inline void AddValues(const float (&weights)[kKeyTiles][4], const __nv_bfloat16* values, int stride,
                                 int seen, int value_dim, float (&sums)[kValueTiles][4]) {
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
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

// Divides by the sums of the weights and writes the item's rows; or writes those of its part as they are.
template <int kWarps, int kValueTiles>
__device__ inline void WriteRows(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const KeySpan& span, const TileLists& lists, int first_row, int first_column,
                                 OnlineSoftmax (&states)[2], const float (&sums)[kValueTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    states[half].sum += __shfl_xor_sync(kWholeWarp, states[half].sum, 1);
    states[half].sum += __shfl_xor_sync(kWholeWarp, states[half].sum, 2);
    const int row = first_row + half * 8;
    if (row >= RowsOf(item)) continue;
    if constexpr (kWarps == 1) {
      if (float* const part = PartRow(call, item, span, row); part != nullptr) {
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          if (n * 8 >= call.value_dim) break;
          *reinterpret_cast<float2*>(part + n * 8 + first_column) =
              make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
        }
        if (first_column == 0) StoreState(states[half], part + call.value_dim);
        continue;
      }
    }
    const float scale = states[half].Normalizer(lists.limits[row] > 0);
    float* const to = OutRow(call, problem, item, row) + first_column;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      if (n * 8 >= call.value_dim) break;
      // + 0: never -0, whose sign would tell of masked keys.
      *reinterpret_cast<float2*>(to + n * 8) =
          make_float2(fmaf(sums[n][2 * half], scale, 0.0f), fmaf(sums[n][2 * half + 1], scale, 0.0f));
    }
  }
}

// Blocks on a multiprocessor at once, as registers allow; for blocks of one warp, as shared memory allows.
constexpr int BlocksAtOnce(int warps, int steps, int value_dim, bool masked) {
  if (masked) return 2;
  if (warps > 1) return steps > 0 && value_dim <= 16 ? 4 : value_dim <= 64 ? 3 : 2;
  return steps > 0 && value_dim <= 32 ? 16 : value_dim <= 64 ? 12 : 8;
}

// kSteps: of 16 columns of q and k; 0: any number. kValueDim >=
// value_dim. Items: ListedItems or DenseItems.
template <typename Items, int kWarps, int kSteps, int kValueDim>
__global__ void __launch_bounds__(kTileThreads<kWarps>, BlocksAtOnce(kWarps, kSteps, kValueDim, Items::kMasked))
    AttendTilesBf16(const __grid_constant__ DeviceCall call) {
  __shared__ typename Items::Lists lists;
  const auto& item = Items::template Get<kWarps>(call);
  const DeviceProblem& problem = call.problems[item.problem];
  KeySpan span;
  if (Items::Skip(call, problem, item) || !FindKeySpan<kWarps>(call, item, span) || Cancelled(problem)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int first_row = warp * kWarpQueries + lane / 4, first_column = lane % 4 * 2;
  const int stride = Stride(call.head_dim), value_stride = Stride(call.value_dim);
  auto* const queries = reinterpret_cast<__nv_bfloat16*>(DynamicShared());
  __nv_bfloat16* const keys = queries + kWarps * kWarpQueries * stride;
  __nv_bfloat16* const values = keys + kTileKeys * stride;

  LoadLimits<kWarps>(item, span, lists);
  LoadTileKeys<kWarps>(item, span, span.first_tile, lists);
  StageQueries<kWarps>([&](int row) { return row < RowsOf(item) ? QueryRow(call, problem, item, row) : nullptr; },
                       call.head_dim, queries);
  __syncthreads();
  const LimitRange range = FindLimitRange<kWarps>(item, lists, warp, lane);
  const __nv_bfloat16* const own_queries = queries + warp * kWarpQueries * stride + RowsFirst(lane, stride);
  // Queries are held in registers, unless a draw or wide values need those.
  constexpr int kHeld = kValueDim <= 128 && !Items::kMasked ? kSteps : 0;
  uint32_t held[kHeld > 0 ? kHeld : 1][4];
#pragma unroll
  for (int step = 0; step < kHeld; ++step) LoadMatrices<false>(own_queries + step * kStep, held[step]);

  const int64_t key_head = KeyHead(call, item.head);
  Items items(call, item, warp);
  OnlineSoftmax states[2];
  float sums[kValueDim / 8][4] = {};
  const auto start_keys = [&](int tile) {
    StartTile<kWarps, 2 * kSteps>(lists.keys[tile & 1],
                                  call.k16 + problem.first_row * call.k16_stride + key_head * call.k16_head_stride,
                                  call.k16_stride, call.head_dim, keys);
  };
  // Values are on their way while the scores are computed, the next keys while the values are summed.
  start_keys(span.first_tile);
  for (int tile = span.first_tile; tile * kTileKeys < range.item_most; ++tile) {
    StartTile<kWarps, kValueDim / 8>(lists.keys[tile & 1],
                                     call.v16 + problem.first_row * call.v16_stride + key_head * call.v16_head_stride,
                                     call.v16_stride, call.value_dim, values);
    LoadTileKeys<kWarps>(item, span, tile + 1, lists);
    const int seen = min(range.warp_most - tile * kTileKeys, kTileKeys);  // the same for all threads of a warp
    if (seen > 0) items.Next(tile, lists);
    WaitForTile();
    float scores[kKeyTiles][4];
    if (seen > 0) {
      ScoreTile<kHeld>(held, own_queries, keys + ColumnsFirst(lane, stride), kSteps > 0 ? kSteps : Steps(call.head_dim),
                       stride, scores);
    }
    __syncthreads();  // the keys have been read
    start_keys(tile + 1);
    if (seen > 0) {
      // Not in the exponent's multiply-add, whose rounding may be anything where scores are large.
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] *= call.scale * kLog2E;
      }
      AddBiases(call, problem, item, lists, tile, first_row, first_column, scores);
      if constexpr (Items::kMasked) {
        HideTile(lists, first_row, first_column, scores);
      } else if (range.warp_start > tile * kTileKeys || range.warp_least < (tile + 1) * kTileKeys) {
        MaskTile(lists, tile, first_row, first_column, scores);
      }
      WeighTile(scores, states, sums);
    }
    WaitForTile();
    if (seen > 0) AddValues(scores, values + RowsFirst(lane, value_stride), value_stride, seen, call.value_dim, sums);
    __syncthreads();  // the values have been read
  }
  __pipeline_wait_prior(0);
  items.Finish(call, lists);
  WriteRows<kWarps>(call, problem, item, span, lists, first_row, first_column, states, sums);
}

}  // namespace edgewise::cuda::tiles_bf16

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_BF16_CUH_
