// The tile kernel in float32: plain fused multiply-adds, 8 rows by 4 keys of scores a thread. For each tile of keys:
//   1. StageRows copies the keys to shared memory; dense heads draw or read their edges (DenseItems::Next).
//   2. ScoreTile multiplies queries and keys; AddBiases adds biases.
//   3. HideTile or MaskTile hides the pairs that are no edges.
//   4. WeighTile turns scores into weights and rescales the sums.
//   5. StageRows copies the values to the place of the keys; AddValues adds them, weighted.
// At the end WriteRows divides by the sums of the weights.
//
// A warp has 16 neighbouring queries, half a warp 8 of them; the 16 threads of a half have every 16th key of the tile
// and every 16th run of value columns. So a row's weights pass through shared memory within half a warp only.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/attention/tiles_stage.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda::tiles_fp32 {

inline constexpr int kRows = 8;                      // of a thread
inline constexpr int kKeys = 4;                      // of a thread: column + 16 i
inline constexpr int kRowThreads = 16;               // that share a row
inline constexpr int kWeightStride = kTileKeys + 4;  // floats; rows that lie 4 apart are 16 banks apart

// Columns of q and k in groups of 4 floats, and the groups from one row to the next in shared memory: an odd number, so
// that neighbouring rows lie in different banks.
EDGEWISE_HOST_DEVICE inline int Groups(int head_dim) { return head_dim / 4; }
EDGEWISE_HOST_DEVICE inline int GroupStride(int head_dim) { return Groups(head_dim) | 1; }

// Dynamic shared memory: scaled queries, then keys or values of the tile, then weights.
template <int kWarps>
EDGEWISE_HOST_DEVICE inline int QueryFloats(int head_dim) {
  return kWarps * kWarpQueries * 4 * GroupStride(head_dim);
}
EDGEWISE_HOST_DEVICE inline int TileFloats(int head_dim, int padded_value_dim) {
  const int keys = kTileKeys * 4 * GroupStride(head_dim), values = kTileKeys * padded_value_dim;
  return keys > values ? keys : values;
}
template <int kWarps>
inline size_t SharedBytes(int head_dim, int padded_value_dim) {
  const int floats =
      QueryFloats<kWarps>(head_dim) + TileFloats(head_dim, padded_value_dim) + kWarps * kWarpQueries * kWeightStride;
  return static_cast<size_t>(floats) * sizeof(float);
}

// Row i of a thread lies RowStep(i) after its first; the two halves of a warp have rows 4 apart.
__device__ inline int RowStep(int i) { return (i & 3) + (i >> 2) * 8; }

// scores[i][j] = <query row i, key column + 16 j>, added up from the first dimension to the last.
__device__ inline void ScoreTile(const float* queries, const float* keys, int groups, int group_stride, int first_row,
                                 int column, float (&scores)[kRows][kKeys]) {
  const float4* const q = reinterpret_cast<const float4*>(queries) + first_row * group_stride;
  const float4* const k = reinterpret_cast<const float4*>(keys) + column * group_stride;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) scores[i][j] = 0.0f;
  }
  for (int group = 0; group < groups; ++group) {
    float4 key[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) key[j] = k[j * kRowThreads * group_stride + group];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 query = q[RowStep(i) * group_stride + group];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        float score = scores[i][j];
        score = fmaf(query.x, key[j].x, score);
        score = fmaf(query.y, key[j].y, score);
        score = fmaf(query.z, key[j].z, score);
        scores[i][j] = fmaf(query.w, key[j].w, score);
      }
    }
  }
}

// Adds the biases of a tile to its scores, row by row, in the thread's own places of `weights`: all rows at once would
// take more registers for addresses than there are.
__device__ inline void AddBiases(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const TileLists& lists, int tile, int first_row, int column, float* weights,
                                 float (&scores)[kRows][kKeys]) {
  if (call.distance_bias == nullptr && problem.bias_length == 0) return;
  float* const own = weights + first_row * kWeightStride + column;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) own[RowStep(i) * kWeightStride + j * kRowThreads] = scores[i][j];
  }
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row + RowStep(i);
    const int seen = lists.limits[row] - tile * kTileKeys;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int place = column + j * kRowThreads;
      if (place >= seen) continue;
      const float bias =
          BiasOf(call, problem, HeadOf(item, row), item.first_query + QueryOf(item, row), lists.keys[tile & 1][place]);
      float& score = own[RowStep(i) * kWeightStride + j * kRowThreads];
      score = fmaf(bias, kLog2E, score);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) scores[i][j] = own[RowStep(i) * kWeightStride + j * kRowThreads];
  }
}

// Hides the keys before each row's start and beyond its limit.
__device__ inline void MaskTile(const TileLists& lists, int tile, int first_row, int column,
                                float (&scores)[kRows][kKeys]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int hidden = lists.starts[first_row + RowStep(i)] - tile * kTileKeys;
    const int seen = lists.limits[first_row + RowStep(i)] - tile * kTileKeys;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int place = column + j * kRowThreads;
      scores[i][j] = place >= hidden && place < seen ? scores[i][j] : kNoScore;
    }
  }
}

// Hides the pairs that are no edges.
template <typename Lists>
__device__ inline void HideTile(const Lists& lists, int first_row, int column, float (&scores)[kRows][kKeys]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint64_t edges = lists.edges[first_row + RowStep(i)] >> column;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) scores[i][j] = (edges >> (j * kRowThreads) & 1) != 0 ? scores[i][j] : kNoScore;
  }
}

// Turns scores into weights, in shared memory for the other threads of the row, and rescales the sums. A tile in which
// a row sees no key changes no bit of the row: the largest score stays, so `shrink` is 1 and every weight 0. A state's
// sum is of the thread's own keys.
template <int kColumns>
__device__ inline void WeighTile(const float (&scores)[kRows][kKeys], int first_row, int column, float* weights,
                                 OnlineSoftmax (&states)[kRows], float (&sums)[kRows][kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float largest = fmaxf(fmaxf(scores[i][0], scores[i][1]), fmaxf(scores[i][2], scores[i][3]));
    for (int step = kRowThreads / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, step));
    }
    const float shrink = states[i].Raise(largest);
    states[i].sum *= shrink;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[i][c] *= shrink;
    float* const row = weights + (first_row + RowStep(i)) * kWeightStride;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const float weight = states[i].Weight(scores[i][j]);
      states[i].sum += weight;
      row[column + j * kRowThreads] = weight;
    }
  }
}

// Value columns of a thread: runs of kRun neighbouring ones, 16 runs from one to its next.
template <int kColumns>
inline constexpr int kRun = kColumns < 4 ? kColumns : 4;

// sums += weights times values, in the order of keys, up to the last key that a row of the warp sees.
template <int kColumns>
__device__ inline void AddValues(const float* weights, const float* values, int seen, int value_dim, int first_row,
                                 int column, float (&sums)[kRows][kColumns]) {
  constexpr int kSpan = kRowThreads * kRun<kColumns>;
  constexpr int kValueStride = kRowThreads * kColumns;
  const float* const row_weights = weights + first_row * kWeightStride;
  const float* const own_values = values + column * kRun<kColumns>;
  for (int key = 0; key < seen; key += 4) {
    float weight[kRows][4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(row_weights + RowStep(i) * kWeightStride + key);
      weight[i][0] = four.x;
      weight[i][1] = four.y;
      weight[i][2] = four.z;
      weight[i][3] = four.w;
    }
#pragma unroll
    for (int run = 0; run < kColumns / kRun<kColumns>; ++run) {
      if (run * kSpan >= value_dim) break;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float* const from = own_values + (key + t) * kValueStride + run * kSpan;
        float value[kRun<kColumns>];
        if constexpr (kRun<kColumns> == 4) {
          const float4 four = *reinterpret_cast<const float4*>(from);
          value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
        } else {
#pragma unroll
          for (int c = 0; c < kRun<kColumns>; ++c) value[c] = from[c];
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int c = 0; c < kRun<kColumns>; ++c) {
            float& sum = sums[i][run * kRun<kColumns> + c];
            sum = fmaf(weight[i][t], value[c], sum);
          }
        }
      }
    }
  }
}

// Divides by the sums of the weights and writes the item's rows; or writes those of its part as they are.
template <int kWarps, int kColumns>
__device__ inline void WriteRows(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                 const KeySpan& span, const TileLists& lists, int first_row, int column,
                                 OnlineSoftmax (&states)[kRows], const float (&sums)[kRows][kColumns]) {
  constexpr int kSpan = kRowThreads * kRun<kColumns>;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float& sum = states[i].sum;
    for (int step = kRowThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    const int row = first_row + RowStep(i);
    if (row >= RowsOf(item)) continue;
    const auto place = [&](int c) { return c / kRun<kColumns> * kSpan + column * kRun<kColumns> + c % kRun<kColumns>; };
    if constexpr (kWarps == 1) {
      if (float* const part = PartRow(call, item, span, row); part != nullptr) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (place(c) < call.value_dim) part[place(c)] = sums[i][c];
        }
        if (column == 0) StoreState(states[i], part + call.value_dim);
        continue;
      }
    }
    const float scale = states[i].Normalizer(lists.limits[row] > 0);
    float* const out = OutRow(call, problem, item, row);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int t = place(c);
      // + 0: never -0, whose sign would tell of masked keys.
      if (t < call.value_dim) out[t] = fmaf(sums[i][c], scale, 0.0f);
    }
  }
}

// Blocks on a multiprocessor at once, as registers allow; for blocks of one warp, as shared memory allows.
constexpr int BlocksAtOnce(int warps, int columns, bool masked) {
  if (warps > 1) return columns <= 4 && !masked ? 4 : 2;
  return columns <= 2 ? 12 : 8;
}
// Loads that a thread has in flight when tiles are staged. A block of one warp needs more of them.
template <int kWarps, int kColumns>
inline constexpr int kLoadsAtOnce = kWarps > 1                       ? 4
                                    : kColumns == 4 || kColumns == 8 ? 16
                                                                     : 8;

// kColumns: value columns of a thread; 16 * kColumns >= value_dim. Items: ListedItems or DenseItems.
template <typename Items, int kWarps, int kColumns>
__global__ void __launch_bounds__(kTileThreads<kWarps>, BlocksAtOnce(kWarps, kColumns, Items::kMasked))
    AttendTilesFp32(const __grid_constant__ DeviceCall call) {
  __shared__ typename Items::Lists lists;
  const auto& item = Items::template Get<kWarps>(call);
  const DeviceProblem& problem = call.problems[item.problem];
  KeySpan span;
  if (Items::Skip(call, problem, item) || !FindKeySpan<kWarps>(call, item, span) || Cancelled(problem)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int first_row = warp * kWarpQueries + lane / kRowThreads * 4, column = lane % kRowThreads;
  constexpr int kLoads = kLoadsAtOnce<kWarps, kColumns>;
  const int groups = Groups(call.head_dim), group_stride = GroupStride(call.head_dim);
  float* const queries = reinterpret_cast<float*>(DynamicShared());
  float* const tile_rows = queries + QueryFloats<kWarps>(call.head_dim);
  float* const weights = tile_rows + TileFloats(call.head_dim, kRowThreads * kColumns);

  LoadLimits<kWarps>(item, span, lists);
  LoadTileKeys<kWarps>(item, span, span.first_tile, lists);
  StageRows<kWarps, kWarps * kWarpQueries, 4>(
      [&](int row) { return row < RowsOf(item) ? QueryRow(call, problem, item, row) : nullptr; }, call.head_dim,
      call.scale * kLog2E, groups, group_stride, queries);
  __syncthreads();
  const LimitRange range = FindLimitRange<kWarps>(item, lists, warp, lane);

  const int64_t key_head = KeyHead(call, item.head);
  Items items(call, item, warp);
  OnlineSoftmax states[kRows];
  float sums[kRows][kColumns] = {};
  for (int tile = span.first_tile; tile * kTileKeys < range.item_most; ++tile) {
    const auto row_of = [&](const float* from, int64_t stride, int row) {
      const int64_t key = lists.keys[tile & 1][row];
      return key < 0 ? nullptr : from + key * stride;
    };
    const float* const k = call.k + problem.first_row * call.k_stride + key_head * call.head_dim;
    StageRows<kWarps, kTileKeys, kLoads>([&](int row) { return row_of(k, call.k_stride, row); }, call.head_dim, 1.0f,
                                         groups, group_stride, tile_rows);
    LoadTileKeys<kWarps>(item, span, tile + 1, lists);
    const int seen = min(range.warp_most - tile * kTileKeys, kTileKeys);  // the same for all threads of a warp
    if (seen > 0) items.Next(tile, lists);
    __syncthreads();
    if (seen > 0) {
      float scores[kRows][kKeys];
      ScoreTile(queries, tile_rows, groups, group_stride, first_row, column, scores);
      AddBiases(call, problem, item, lists, tile, first_row, column, weights, scores);
      if constexpr (Items::kMasked) {
        HideTile(lists, first_row, column, scores);
      } else if (range.warp_start > tile * kTileKeys || range.warp_least < (tile + 1) * kTileKeys) {
        MaskTile(lists, tile, first_row, column, scores);
      }
      WeighTile(scores, first_row, column, weights, states, sums);
    }
    __syncthreads();  // the keys have been read
    const float* const v = call.v + problem.first_row * call.v_stride + key_head * call.value_dim;
    StageRows<kWarps, kTileKeys, kLoads>([&](int row) { return row_of(v, call.v_stride, row); }, call.value_dim, 1.0f,
                                         4 * kColumns, 4 * kColumns, tile_rows);
    __syncthreads();
    if (seen > 0) AddValues(weights, tile_rows, seen, call.value_dim, first_row, column, sums);
    __syncthreads();  // the values have been read
  }
  items.Finish(call, lists);
  WriteRows<kWarps>(call, problem, item, span, lists, first_row, column, states, sums);
}

}  // namespace edgewise::cuda::tiles_fp32

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_FP32_CUH_
