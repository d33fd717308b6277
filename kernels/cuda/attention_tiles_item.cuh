// What both precisions of the tile kernel share: the limits and keys of an item, and how rows are moved.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/launch.h"

namespace edgewise::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileWarps = kTileThreads / kWarpSize;
inline constexpr int kWarpQueries = kTileQueries / kTileWarps;  // neighbouring ones
inline constexpr int kMaxTileDim = 256;                         // of head_dim and value_dim
inline constexpr float kNoScore = -INFINITY;                    // of a masked pair

// In shared memory: how many keys each row of the item sees, and the keys of this tile and the next.
struct TileLists {
  int32_t limits[kTileQueries];  // 0 of rows that the item does not have
  int32_t keys[2][kTileKeys];    // packed indices; -1: none
};

// The first LimitOf(item, row) keys of the list are those of the row.
__device__ inline int32_t LimitOf(const TileItem& item, int row) {
  if (row >= item.queries) return 0;
  if (item.limits != nullptr) return min(item.limits[row], item.num_keys);
  return item.causal != 0 ? min(item.first_query + row + 1, item.num_keys) : item.num_keys;
}

__device__ inline int32_t KeyAt(const TileItem& item, int32_t place) {
  if (place >= item.num_keys) return -1;
  return item.keys == nullptr ? place : item.keys[place];
}

// Called by the block's first kTileKeys threads with their index.
__device__ inline void LoadTileKeys(const TileItem& item, int tile, int thread, TileLists& lists) {
  lists.keys[tile & 1][thread] = KeyAt(item, tile * kTileKeys + thread);
}

// Limits over all rows of the item and over the 16 rows of a warp.
struct LimitRange {
  int32_t item_most, warp_most;
  int32_t warp_least;  // of rows that the item has
};

// By all threads of each warp together, once `lists.limits` is there.
__device__ inline LimitRange FindLimitRange(const TileItem& item, const TileLists& lists, int warp, int lane) {
  const int row = warp * kWarpQueries + lane % kWarpQueries;
  const int32_t own = lists.limits[row];
  LimitRange range = {max(lists.limits[lane], lists.limits[lane + kWarpSize]), own,
                      row < item.queries ? own : 0x7FFFFFFF};
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    range.item_most = max(range.item_most, __shfl_xor_sync(kWholeWarp, range.item_most, step));
    range.warp_most = max(range.warp_most, __shfl_xor_sync(kWholeWarp, range.warp_most, step));
    range.warp_least = min(range.warp_least, __shfl_xor_sync(kWholeWarp, range.warp_least, step));
  }
  return range;
}

// Whether rows of `columns` elements at `first`, `stride` elements apart, can be read 16 bytes at a time.
template <typename T>
__device__ inline bool AllowsVectors(const T* first, int64_t stride, int columns) {
  constexpr int kElements = 16 / sizeof(T);
  return reinterpret_cast<uintptr_t>(first) % 16 == 0 && stride % kElements == 0 && columns % kElements == 0;
}

// Floats column..column + 3 of a row of `columns`, zeros beyond; row null: zeros.
__device__ inline float4 LoadFour(const float* row, int column, int columns, bool vectors) {
  if (row == nullptr || column >= columns) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (vectors) return *reinterpret_cast<const float4*>(row + column);
  return make_float4(row[column], column + 1 < columns ? row[column + 1] : 0.0f,
                     column + 2 < columns ? row[column + 2] : 0.0f, column + 3 < columns ? row[column + 3] : 0.0f);
}

inline constexpr int kTileRows = 64;
static_assert(kTileRows == kTileQueries && kTileRows == kTileKeys);

// Threads side by side in a row of `groups` groups.
__device__ inline int ThreadsOfRow(int groups) {
  int width = 1;
  while (width < groups && width < kWarpSize) width *= 2;
  return width;
}

// store(row, group, load(row, group)) for kTileRows rows and groups 0..groups - 1, by all threads of the block:
// neighbours take neighbouring groups, and several loads of a thread are in flight.
template <typename Load, typename Store>
__device__ inline void MoveGroups(int groups, const Load& load, const Store& store) {
  constexpr int kAtOnce = 4;
  const int width = ThreadsOfRow(groups);
  const int thread = static_cast<int>(threadIdx.x), step = kTileThreads / width;
  for (int group = thread % width; group < groups; group += width) {
    for (int first = thread / width; first < kTileRows; first += kAtOnce * step) {
      decltype(load(0, 0)) loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < kTileRows) loaded[i] = load(first + i * step, group);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < kTileRows) store(first + i * step, group, loaded[i]);
      }
    }
  }
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_
