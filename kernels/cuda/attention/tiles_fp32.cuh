// The tile kernel in float32 on tensor cores. Queries, keys, weights and values are sums of three bf16, which are all
// 24 bits of a float32, so that a product is nine products of bf16. The six that are not below 2^-22 of it are added
// up in float32: of the smallest parts first, and the values of each tile of keys apart. For each tile of keys:
//   1. StageParts copies the keys to shared memory, 64 columns at a time, and ScoreTile adds those columns' products;
//      dense heads read their edges meanwhile (DenseItems::Next).
//   2. AddBiases adds biases; HideTile or MaskTile hides the pairs that are no edges.
//   3. WeighTile turns scores into weights.
//   4. StageParts copies the values to the place of the keys, 64 columns at a time, and AddValues adds them, weighted.
// At the end WriteRows divides by the sums of the weights.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_

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

namespace edgewise::cuda::tiles_fp32 {

inline constexpr int kStep = 16;  // columns or keys that one product sums over
inline constexpr int kKeys = 64;  // of a tile
inline constexpr int kKeySteps = kKeys / kStep;
inline constexpr int kKeyTiles = kKeys / 8;  // 8 keys each

// A kernel is for heads of at most kDim columns of keys and of values. Those beyond a head's own are zeros.
template <int kDim>
inline constexpr int kColumns = kDim < 64 ? kDim : 64;  // in shared memory at a time
template <int kDim>
inline constexpr int kStride = kColumns<kDim> + 8;  // neighbouring rows lie in different banks
template <int kDim>
inline constexpr int kPartRows = kKeys* kStride<kDim>;  // elements from part to part

EDGEWISE_HOST_DEVICE inline int QueryStride(int head_dim) { return (head_dim + 63) / 64 * 64 + 8; }
// Dynamic shared memory: parts of queries, parts of keys or values of the tile.
template <int kWarps, int kDim>
inline size_t SharedBytes(int head_dim) {
  return sizeof(__nv_bfloat16) * kParts * (kWarps * kWarpQueries * QueryStride(head_dim) + kPartRows<kDim>);
}

// low, high += the A operands `left` times 8 columns of B operands each; right(b, step, to) gives those of part b.
template <int kSteps, typename Right>
__device__ inline void AddProducts(const uint32_t (&left)[kParts][kSteps][4], const Right& right, float (&low)[4],
                                   float (&high)[4]) {
#pragma unroll
  for (int b = kParts - 1; b >= 0; --b) {
    uint32_t part[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) right(b, step, part[step]);
#pragma unroll
    for (int a = kParts - 1 - b; a >= 0; --a) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        MmaBf16(low, left[a][step], part[step]);
        MmaBf16(high, left[a][step], part[step] + 2);
      }
    }
  }
}

// scores += queries times keys, of the columns in shared memory. `queries`, `keys`: where the lane's rows begin.
template <int kDim>
__device__ inline void ScoreTile(const __nv_bfloat16* queries, int query_part, const __nv_bfloat16* keys,
                                 float (&scores)[kKeyTiles][4]) {
  constexpr int kSteps = kColumns<kDim> / kStep;
  uint32_t query[kParts][kSteps][4];
#pragma unroll
  for (int a = 0; a < kParts; ++a) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      LoadMatrices<false>(queries + a * query_part + step * kStep, query[a][step]);
  }
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    const auto key = [&](int b, int step, uint32_t(&to)[4]) {
      LoadMatrices<false>(keys + b * kPartRows<kDim> + n * 8 * kStride<kDim> + step * kStep, to);
    };
    AddProducts(query, key, scores[n], scores[n + 1]);
  }
}

// The weights of a tile in parts, as A operands.
__device__ inline void PartWeights(const float (&weights)[kKeyTiles][4], uint32_t (&parts)[kParts][kKeySteps][4]) {
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pair = weights[2 * step + i / 2] + i % 2 * 2;
      const PairParts of = PartPair(pair[0], pair[1]);
#pragma unroll
      for (int a = 0; a < kParts; ++a) parts[a][step][i] = of.part[a];
    }
  }
}

// sums = sums * shrink + weights times values, of the first `columns` in shared memory. `values`: where the lane's rows
// begin.
template <int kDim>
__device__ inline void AddValues(const uint32_t (&weights)[kParts][kKeySteps][4], const __nv_bfloat16* values,
                                 int columns, const float (&shrink)[2], float (*sums)[4]) {
#pragma unroll
  for (int n = 0; n < kColumns<kDim> / 8; n += 2) {
    if (n * 8 >= columns) break;
    const auto value = [&](int b, int step, uint32_t(&to)[4]) {
      LoadMatrices<true>(values + b * kPartRows<kDim> + step * kStep * kStride<kDim> + n * 8, to);
    };
    float more[2][4] = {};
    AddProducts(weights, value, more[0], more[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& sum = sums[n + i / 4][i % 4];
      sum = fmaf(sum, shrink[i % 4 / 2], more[i / 4][i % 4]);
    }
  }
}

// Blocks on a multiprocessor at once, as shared memory allows.
constexpr int BlocksAtOnce(int warps, int dim) { return warps == 1 ? 8 : dim <= 32 ? 3 : 2; }

// kDim >= head_dim and value_dim. Items: ListedItems or DenseItems.
template <typename Items, int kWarps, int kDim>
__global__ void __launch_bounds__(kTileThreads<kWarps>, BlocksAtOnce(kWarps, kDim))
    AttendTilesFp32(const __grid_constant__ DeviceCall call) {
  __shared__ typename Items::template Lists<kKeys> lists;
  const auto& item = Items::template Get<kWarps>(call);
  const DeviceProblem& problem = call.problems[item.problem];
  KeySpan span;
  if (Items::Skip(call, problem, item) || !FindKeySpan<kWarps, kKeys>(call, item, span) || Cancelled(problem)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int first_row = warp * kWarpQueries + lane / 4, first_column = lane % 4 * 2;
  const int query_stride = QueryStride(call.head_dim), query_part = kWarps * kWarpQueries * query_stride;
  auto* const queries = reinterpret_cast<__nv_bfloat16*>(DynamicShared());
  __nv_bfloat16* const tile_rows = queries + kParts * query_part;

  LoadLimits<kWarps>(item, span, lists);
  LoadTileKeys<kWarps>(item, span, span.first_tile, lists);
  for (int column = 0; column < call.head_dim; column += kColumns<kDim>) {
    StageParts<kWarps, kWarps * kWarpQueries, kColumns<kDim>>(
        [&](int row) { return row < RowsOf(item) ? QueryRow(call, problem, item, row) + column : nullptr; },
        call.head_dim - column, call.scale * kLog2E, query_part, query_stride, queries + column);
  }
  __syncthreads();
  const LimitRange range = FindLimitRange<kWarps>(item, lists, warp, lane);
  const __nv_bfloat16* const own_queries = queries + warp * kWarpQueries * query_stride + RowsFirst(lane, query_stride);
  const auto stage = [&](const HeadRows<float>& from, int head_columns, int tile, int column) {
    StageParts<kWarps, kKeys, kColumns<kDim>>(
        [&](int row) {
          const int32_t key = lists.keys[tile & 1][row];
          return key < 0 ? nullptr : from(key) + column;
        },
        head_columns - column, 1.0f, kPartRows<kDim>, kStride<kDim>, tile_rows);
    __syncthreads();
  };

  Items items(call, item, warp);
  OnlineSoftmax states[2];
  float sums[kDim / 8][4] = {};
  for (int tile = span.first_tile; tile * kKeys < range.item_most; ++tile) {
    const int seen = min(range.warp_most - tile * kKeys, kKeys);  // the same for all threads of a warp
    float scores[kKeyTiles][4] = {};
#pragma unroll
    for (int column = 0; column < kDim; column += kColumns<kDim>) {
      if (column >= call.head_dim) break;
      stage(KeysOf(call, problem, item, call.k, call.k_stride, call.head_dim), call.head_dim, tile, column);
      if (seen > 0) {
        ScoreTile<kDim>(own_queries + column, query_part, tile_rows + ColumnsFirst(lane, kStride<kDim>), scores);
      }
      __syncthreads();  // the keys have been read
    }
    LoadTileKeys<kWarps>(item, span, tile + 1, lists);
    float shrink[2];
    uint32_t weights[kParts][kKeySteps][4];
    if (seen > 0) {
      items.Next(tile, lists);
      AddBiases(call, problem, item, lists, tile, first_row, first_column, kLog2E, scores);
      if constexpr (Items::kMasked) {
        HideTile(lists, first_row, first_column, scores);
      } else if (range.warp_start > tile * kKeys || range.warp_least < (tile + 1) * kKeys) {
        MaskTile(lists, tile, first_row, first_column, scores);
      }
      WeighTile(1.0f, scores, states, shrink);
      PartWeights(scores, weights);
    }
#pragma unroll
    for (int column = 0; column < kDim; column += kColumns<kDim>) {
      if (column >= call.value_dim) break;
      stage(ValuesOf(call, problem, item, call.v, call.v_stride, call.value_dim), call.value_dim, tile, column);
      if (seen > 0) {
        AddValues<kDim>(weights, tile_rows + RowsFirst(lane, kStride<kDim>), call.value_dim - column, shrink,
                        sums + column / 8);
      }
      __syncthreads();  // the values have been read
    }
  }
  items.Finish(lists);
  WriteRows<false, kWarps>(call, problem, item, span, lists, first_row, first_column, states, sums);
}

}  // namespace edgewise::cuda::tiles_fp32

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_
