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
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/rounded.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kTileWarps = kTileQueries / kWarpQueries;
template <int kWarps>
inline constexpr int kTileThreads{kWarps * kWarpSize};
inline constexpr int kMaxTileDim = 256;       // of head_dim and value_dim
inline constexpr float kNoScore = -INFINITY;  // of a masked pair

// In shared memory: which keys each row of the item sees. kKeys: of a tile, over which the softmax is taken at a time;
// a multiple of kTileKeys.
template <int kKeys>
struct TileLists {
  int32_t starts[kTileQueries];  // of the block's rows; 0 of rows that the item does not have
  int32_t limits[kTileQueries];  // likewise, within the block's keys
  int32_t keys[2][kKeys];        // packed indices of this tile and the next; -1: none
};

// The items that a kernel takes, one a block, or one part of one: here those of the call's lists, whose queries see all
// keys up to a limit.
class ListedItems {
 public:
  static constexpr bool kMasked = false;
  template <int kKeys>
  using Lists = TileLists<kKeys>;
  template <int kWarps>
  static int64_t Count(const DeviceCall& call) {
    return kWarps == 1 ? call.num_narrow_items * call.most_parts : call.num_tile_items;
  }
  template <int kWarps>
  __device__ static const TileItem& Get(const DeviceCall& call) {
    if constexpr (kWarps > 1) return call.tile_items[blockIdx.x];
    return call.narrow_items[blockIdx.x / call.most_parts];
  }
  __device__ static bool Skip(const DeviceCall&, const DeviceProblem&, const TileItem&) { return false; }
  __device__ ListedItems(const DeviceCall&, const TileItem&, int) {}
  template <typename Lists>
  __device__ void Next(int, Lists&) {}
  template <typename Lists>
  __device__ void Finish(Lists&) const {}
};

// The row sees the keys of the list from StartOf to LimitOf - 1.
__device__ inline int32_t StartOf(const TileItem& item, int row) {
  return row >= RowsOf(item) || item.starts == nullptr ? 0 : item.starts[QueryOf(item, row)];
}
__device__ inline int32_t LimitOf(const TileItem& item, int row) {
  if (row >= RowsOf(item)) return 0;
  const int32_t query = QueryOf(item, row);
  if (item.limits != nullptr) return min(item.limits[query], item.num_keys);
  return item.causal != 0 ? min(item.first_query + query + 1, item.num_keys) : item.num_keys;
}

// The row's columns of q, and of the output.
__device__ inline int64_t QueryPlace(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                     int row) {
  return (problem.query_row + item.first_query + QueryOf(item, row)) * call.q_stride +
         static_cast<int64_t>(HeadOf(item, row)) * call.head_dim;
}
__device__ inline const float* QueryRow(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                        int row) {
  return call.q + QueryPlace(call, problem, item, row);
}
__device__ inline OutRow OutRowOf(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, int row) {
  return {call, problem.out_row + item.first_query + QueryOf(item, row) - problem.first_query, HeadOf(item, row)};
}

// The keys of the item's list that the block attends to: those from tile `first_tile` on, before place `end`.
struct KeySpan {
  int part;  // of the item
  int first_tile;
  int32_t end;
};
// A block of several warps takes all keys. So does one of one warp unless the item is attended to in parts; false: the
// item has no such part.
template <int kWarps, int kKeys>
__device__ inline bool FindKeySpan(const DeviceCall& call, const TileItem& item, KeySpan& span) {
  span = {0, item.first_key / kKeys, item.num_keys};
  if constexpr (kWarps > 1) return true;
  span.part = static_cast<int>(blockIdx.x % call.most_parts);
  if (span.part >= PartsOf(item)) return false;
  if (item.first_part < 0) return true;
  const int part = item.first_key / kPartKeys + span.part;  // of the list
  span.first_tile = max(span.first_tile, part * (kPartKeys / kKeys));
  span.end = min(item.num_keys, (part + 1) * kPartKeys);
  static_assert(kPartKeys % kKeys == 0);
  return true;
}

__device__ inline void StoreState(const OnlineSoftmax& state, float* to) {
  to[0] = state.largest;
  to[1] = state.sum;
}

// Where a row of the item's part goes; null: the block has all keys.
__device__ inline float* PartRow(const DeviceCall& call, const TileItem& item, const KeySpan& span, int row) {
  if (item.first_part < 0) return nullptr;
  return call.part_rows +
         (item.first_part + static_cast<int64_t>(span.part) * RowsOf(item) + row) * PartStride(call.value_dim);
}

// By all threads of the block.
template <int kWarps, int kKeys>
__device__ inline void LoadTileKeys(const TileItem& item, const KeySpan& span, int tile, TileLists<kKeys>& lists) {
  for (int i = static_cast<int>(threadIdx.x); i < kKeys; i += kTileThreads<kWarps>) {
    const int32_t place = tile * kKeys + i;
    lists.keys[tile & 1][i] = place >= span.end ? -1 : item.keys == nullptr ? place : item.keys[place];
  }
}

// By all threads of the block.
template <int kWarps, int kKeys>
__device__ inline void LoadLimits(const TileItem& item, const KeySpan& span, TileLists<kKeys>& lists) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= kWarps * kWarpQueries) return;
  lists.starts[row] = StartOf(item, row);
  lists.limits[row] = min(LimitOf(item, row), span.end);
}

// Limits over all rows of the item and over the 16 rows of a warp.
struct LimitRange {
  int32_t item_most, warp_most;
  int32_t warp_least;  // of rows that the item has
  int32_t warp_start;  // the most start
};

// By all threads of each warp together, once LoadLimits has run and a barrier has followed.
template <int kWarps, int kKeys>
__device__ inline LimitRange FindLimitRange(const TileItem& item, const TileLists<kKeys>& lists, int warp, int lane) {
  const int row = warp * kWarpQueries + lane % kWarpQueries;
  const int32_t own = lists.limits[row];
  LimitRange range = {own, own, row < RowsOf(item) ? own : 0x7FFFFFFF, lists.starts[row]};
  if constexpr (kWarps > 1) {
    for (int other = lane; other < kWarps * kWarpQueries; other += kWarpSize) {
      range.item_most = max(range.item_most, lists.limits[other]);
    }
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    range.item_most = max(range.item_most, __shfl_xor_sync(kWholeWarp, range.item_most, step));
    range.warp_most = max(range.warp_most, __shfl_xor_sync(kWholeWarp, range.warp_most, step));
    range.warp_least = min(range.warp_least, __shfl_xor_sync(kWholeWarp, range.warp_least, step));
    range.warp_start = max(range.warp_start, __shfl_xor_sync(kWholeWarp, range.warp_start, step));
  }
  return range;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_ITEM_CUH_
