// Blocks of the tile kernel, in both precisions, and the limits and keys of their items.
//
// A block has kWarps warps, 1 or kTileWarps, and every warp has 16 neighbouring queries. The results of a warp do not
// depend on the other warps.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kTileWarps = kTileQueries / kWarpQueries;
template <int kWarps>
inline constexpr int kTileThreads{kWarps * kWarpSize};
inline constexpr int kMaxTileDim = 256;       // of head_dim and value_dim
inline constexpr float kNoScore = -INFINITY;  // of a masked pair

// In shared memory: how many keys each row of the item sees, and the keys of this tile and the next.
struct TileLists {
  int32_t limits[kTileQueries];  // of the block's rows; 0 of rows that the item does not have
  int32_t keys[2][kTileKeys];    // packed indices; -1: none
  uint64_t
      edges[kTileQueries];  // dense heads: bit j of a row's word is set iff key j of the tile is an edge of the row
};

// The items that a kernel takes, one a block: here those of the call's lists, whose queries see all keys up to a limit.
class ListedItems {
 public:
  static constexpr bool kMasked = false;
  template <int kWarps>
  static int64_t Count(const DeviceCall& call) {
    return kWarps == 1 ? call.num_narrow_items : call.num_tile_items;
  }
  template <int kWarps>
  __device__ static const TileItem& Get(const DeviceCall& call) {
    return (kWarps == 1 ? call.narrow_items : call.tile_items)[blockIdx.x];
  }
  __device__ static bool Skip(const DeviceCall&, const DeviceProblem&, const TileItem&) { return false; }
  __device__ ListedItems(const DeviceCall&, const TileItem&, int) {}
  __device__ void Next(int, TileLists&) {}
  __device__ void Finish(const DeviceCall&, TileLists&) const {}
};

// How many keys of the list the row sees: the first ones.
__device__ inline int32_t LimitOf(const TileItem& item, int row) {
  if (row >= item.queries) return 0;
  if (item.limits != nullptr) return min(item.limits[row], item.num_keys);
  return item.causal != 0 ? min(item.first_query + row + 1, item.num_keys) : item.num_keys;
}

__device__ inline int32_t KeyAt(const TileItem& item, int32_t place) {
  if (place >= item.num_keys) return -1;
  return item.keys == nullptr ? place : item.keys[place];
}

// By all threads of the block.
template <int kWarps>
__device__ inline void LoadTileKeys(const TileItem& item, int tile, TileLists& lists) {
  for (int place = static_cast<int>(threadIdx.x); place < kTileKeys; place += kTileThreads<kWarps>) {
    lists.keys[tile & 1][place] = KeyAt(item, tile * kTileKeys + place);
  }
}

// By all threads of the block.
template <int kWarps>
__device__ inline void LoadLimits(const TileItem& item, TileLists& lists) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < kWarps * kWarpQueries) lists.limits[row] = LimitOf(item, row);
}

// Limits over all rows of the item and over the 16 rows of a warp.
struct LimitRange {
  int32_t item_most, warp_most;
  int32_t warp_least;  // of rows that the item has
};

// By all threads of each warp together, once LoadLimits has run and a barrier has followed.
template <int kWarps>
__device__ inline LimitRange FindLimitRange(const TileItem& item, const TileLists& lists, int warp, int lane) {
  const int row = warp * kWarpQueries + lane % kWarpQueries;
  const int32_t own = lists.limits[row];
  LimitRange range = {own, own, row < item.queries ? own : 0x7FFFFFFF};
  if constexpr (kWarps > 1) {
    for (int other = lane; other < kWarps * kWarpQueries; other += kWarpSize) {
      range.item_most = max(range.item_most, lists.limits[other]);
    }
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    range.item_most = max(range.item_most, __shfl_xor_sync(kWholeWarp, range.item_most, step));
    range.warp_most = max(range.warp_most, __shfl_xor_sync(kWholeWarp, range.warp_most, step));
    range.warp_least = min(range.warp_least, __shfl_xor_sync(kWholeWarp, range.warp_least, step));
  }
  return range;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_
