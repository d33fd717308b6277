// Dense heads in the tile kernel: items over all keys of a sequence, whose edges are mask bits.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// In shared memory.
template <int kKeys>
struct DenseLists : TileLists<kKeys> {
  // Bit j of a row's word is set iff key j of a run of kTileKeys keys of the tile is an edge of the row.
  uint64_t edges[kKeys / kTileKeys][kTileQueries];
};

// As ListedItems (tiles_item.cuh), but a query attends only to the keys that Next says. One object a warp.
class DenseItems {
 public:
  static constexpr bool kMasked = true;
  template <int kKeys>
  using Lists = DenseLists<kKeys>;
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
    if (problem.kind != PatternKind::kDrawn) return !IsFirstRound(call);
    return IsWideDense(call, problem) || !IsDenseHead(call, problem, item.head) ||
           !HasBits(call, problem, item.head, item.first_query);
  }

  __device__ DenseItems(const DeviceCall& call, const TileItem& item, int warp)
      : problem_(call.problems[item.problem]),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        first_row_(warp * kWarpQueries),
        rows_(max(0, min(item.queries - first_row_, kWarpQueries))) {
    const int32_t query = item.first_query + first_row_;
    if (problem_.kind == PatternKind::kDrawn) {
      words_ = TileWords(call, problem_, item.head, query, 0, false);
      return;
    }
    const int row = lane_ / 2;
    if (row >= rows_) return;
    const int64_t* offsets = GivenRow(problem_, item.head, query + row);
    next_ = offsets[0] + lane_ % 2;
    end_ = offsets[1];
  }

  // Sets lists.edges of the warp's rows. Tiles come in ascending order; a block barrier lies between two.
  template <int kKeys>
  __device__ void Next(int tile, DenseLists<kKeys>& lists) {
    constexpr int kRuns = kKeys / kTileKeys;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int run = tile * kRuns + i;
      uint64_t* words = lists.edges[i] + first_row_;
      if (words_ == nullptr) {
        Read(run * kTileKeys, words);
      } else if (lane_ < kWarpQueries) {
        const bool there = lane_ < rows_ && run * kTileKeys < problem_.tokens;
        words[lane_] = there ? words_[int64_t{run} * kTileQueries + lane_] : 0;
      }
      __syncwarp(kWholeWarp);
      if (lane_ < kWarpQueries) edges_ += __popcll(words[lane_]);
    }
  }

  // Sets the limits of the warp's rows to their edges.
  template <int kKeys>
  __device__ void Finish(DenseLists<kKeys>& lists) const {
    if (lane_ < kWarpQueries) lists.limits[first_row_ + lane_] = edges_;
    __syncwarp(kWholeWarp);
  }

 private:
  // Two threads read a row's given keys, by turns.
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
  const int lane_, first_row_, rows_;
  const uint64_t* words_ = nullptr;  // of the warp's rows in the first tile; null: the edges are given
  int64_t next_ = 0, end_ = 0;       // of the thread's given edges
  int edges_ = 0;                    // of row `lane`
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_DENSE_CUH_
