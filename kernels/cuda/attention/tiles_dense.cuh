// Dense heads in the tile kernel: items over all keys of a sequence, whose drawn or given edges are mask bits.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_fragment.cuh"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// A warp draws so many tiles ahead, so that the pairs that no byte settles are enough for all of its threads.
inline constexpr int kTilesAhead = 8;

// In shared memory.
struct DenseLists : TileLists {
  uint64_t edges[kTileQueries];  // bit j of a row's word is set iff key j of the tile is an edge of the row
  // By warp:
  uint32_t drawn[kTileWarps][kTilesAhead][kWarpSize];  // words of FragmentDraw, tile by tile
  uint16_t open[kTileWarps][2 * kWarpSize];            // pairs that may be edges: tile, lane and bit of `drawn`
};

// As ListedItems (tiles_item.cuh), but a query attends only to the keys that Next says. One object a warp.
class DenseItems {
 public:
  static constexpr bool kMasked = true;
  using Lists = DenseLists;
  template <int>
  static int64_t Count(const DeviceCall& call) {
    return call.num_dense_items;
  }
  template <int>
  __device__ static TileItem Get(const DeviceCall& call) {
    const RowItem& item = call.dense_items[blockIdx.x];
    return {item.problem, item.head, item.first_query, item.queries, call.problems[item.problem].tokens};
  }
  __device__ static bool Skip(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item) {
    return problem.kind == PatternKind::kDrawn && !IsDenseHead(call, problem, item.head);
  }

  __device__ DenseItems(const DeviceCall& call, const TileItem& item, int warp)
      : problem_(call.problems[item.problem]),
        drawn_(problem_.kind == PatternKind::kDrawn),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        first_row_(warp * kWarpQueries),
        rows_{item.problem, item.head, item.first_query + first_row_, 1,
              max(0, min(item.queries - first_row_, kWarpQueries))},
        draw_(call, rows_) {
    const int row = lane_ / 2;
    if (drawn_ || row >= rows_.rows) return;
    const int64_t* offsets = GivenRow(problem_, rows_.head, rows_.first_query + row);
    next_ = offsets[0] + lane_ % 2;
    end_ = offsets[1];
  }

  // Sets lists.edges of the warp's rows. Tiles come in ascending order; a block barrier lies between two.
  __device__ void Next(int tile, DenseLists& lists) {
    uint64_t* words = lists.edges + first_row_;
    if (drawn_) {
      uint32_t(&drawn)[kTilesAhead][kWarpSize] = lists.drawn[first_row_ / kWarpQueries];
      if (tile % kTilesAhead == 0) DrawAhead(tile, drawn, lists.open[first_row_ / kWarpQueries]);
      Deal(drawn[tile % kTilesAhead][lane_], words);
    } else {
      Read(tile * kTileKeys, words);
    }
    __syncwarp(kWholeWarp);
    if (lane_ < kWarpQueries) edges_ += __popcll(words[lane_]);
  }

  // Sets the limits of the warp's rows to their edges, and adds those to what a drawn head reports.
  __device__ void Finish(const DeviceCall& call, DenseLists& lists) const {
    if (lane_ < kWarpQueries) lists.limits[first_row_ + lane_] = edges_;
    __syncwarp(kWholeWarp);
    int sum = edges_;
    for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    const int isolated = __popc(__ballot_sync(kWholeWarp, lane_ < rows_.rows && edges_ == 0));
    if (lane_ != 0 || !drawn_) return;
    DeviceHeadCounts& counts = call.counts[problem_.count + rows_.head];
    if (sum > 0) atomicAdd(&counts.edges, static_cast<unsigned long long>(sum));
    if (isolated > 0) atomicAdd(&counts.isolated, static_cast<unsigned long long>(isolated));
  }

 private:
  // Draws the tiles first.. up to kTilesAhead of them.
  __device__ void DrawAhead(int first, uint32_t (&drawn)[kTilesAhead][kWarpSize], uint16_t* open) const {
    const auto settle = [&](int begin, int end) {  // of `open`; all threads of the warp
      __syncwarp(kWholeWarp);
      if (begin + lane_ < end) {
        const int pair = open[begin + lane_], tile = pair / (32 * kWarpSize), of_lane = pair / 32 % kWarpSize;
        if (draw_.IsEdge((first + tile) * kTileKeys, of_lane, pair % 32))
          atomicOr(&drawn[tile][of_lane], 1u << pair % 32);
      }
      __syncwarp(kWholeWarp);
    };
    int size = 0;  // of `open`
#pragma unroll 1
    for (int tile = 0; tile < kTilesAhead && (first + tile) * kTileKeys < problem_.tokens; ++tile) {
      FragmentDraw::Settled settled = draw_.Begin((first + tile) * kTileKeys);
      drawn[tile][lane_] = settled.edges;
      for (;;) {  // a pair of each thread that has one
        const unsigned have = __ballot_sync(kWholeWarp, settled.open != 0);
        if (have == 0) break;
        if (settled.open != 0) {
          const int bit = __ffs(static_cast<int>(settled.open)) - 1;
          const int place = size + __popc(have & ((1u << lane_) - 1));
          open[place] = static_cast<uint16_t>((tile * kWarpSize + lane_) * 32 + bit);
          settled.open &= settled.open - 1;
        }
        size += __popc(have);
        if (size < kWarpSize) continue;
        size -= kWarpSize;
        settle(size, size + kWarpSize);
      }
    }
    settle(0, size);
  }

  // Deals a thread's word out to the rows.
  __device__ void Deal(uint32_t edges, uint64_t* words) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t word = KeysOf(edges >> (16 * half) & 0xFFFFu, lane_ % 4);
      if (lane_ % 4 == 0) words[lane_ / 4 + 8 * half] = word;
    }
  }

  // Two threads read a row's keys, by turns.
  __device__ void Read(int32_t first_key, uint64_t* words) {
    uint64_t word = 0;
    for (; next_ < end_; next_ += 2) {
      const int32_t key = problem_.given_keys[next_] - first_key;
      if (key >= kTileKeys) break;
      word |= uint64_t{1} << key;
    }
    word |= __shfl_xor_sync(kWholeWarp, word, 1);
    if (lane_ % 2 == 0) words[lane_ / 2] = word;
  }

  const DeviceProblem& problem_;
  const bool drawn_;
  const int lane_, first_row_;
  const FragmentRows rows_;
  const FragmentDraw draw_;
  int64_t next_ = 0, end_ = 0;  // of the thread's given edges
  int edges_ = 0;               // of row `lane`
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_
