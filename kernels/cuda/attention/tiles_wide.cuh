// The tile kernel in bf16 for sm_90a, heads of 64 or 128 columns without biases, with the bytes of tiles_bf16.cuh: the
// same sums in the same order. A block has 128 queries and three warpgroups. One thread of the first copies keys and
// values, 128 at a time, into a ring of stages (TMA); the other two have 64 queries each. For each tile of keys:
//   1. Multiply starts the scores, and behind them the sums of the tile before with its weights; both run by
//   themselves.
//   2. MaskRow or HideRow hides the pairs that are no edges.
//   3. WeighTile turns scores into weights, while the sums of the tile before are added up.
// Queries, scores, weights and sums are in registers, as tiles_fragment.cuh says.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/online_softmax.h"
#include "kernels/cuda/attention/tiles_fragment.cuh"
#include "kernels/cuda/attention/tiles_item.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace edgewise::cuda::tiles_wide {

inline constexpr int kThreads = 3 * kWarpgroup;
inline constexpr int kKeys = 128;  // of a tile
inline constexpr int kKeyTiles = kKeys / 8;
inline constexpr int kStages = 2;
static_assert(kWideQueries == 2 * kTileQueries && kMapRows == kTileKeys);

// Dynamic shared memory, 1024-byte aligned. A tile's columns lie 64 by 64.
template <int kDim>
struct Shared {
  static constexpr int kColumnBlocks = kDim / kMapColumns;
  using Tile = __nv_bfloat16[kColumnBlocks][kKeys][kMapColumns];
  Tile keys[kStages], values[kStages];
  SharedBarrier keys_full[kStages], keys_free[kStages], values_full[kStages], values_free[kStages];
  SharedBarrier cleared;  // values behind the last key are zeros
};
template <int kDim>
inline constexpr size_t kSharedBytes = sizeof(Shared<kDim>) + 1024;

// Tiles of keys that no row of the item sees come first; a block begins behind them, and counts from there.
template <int kKeys>
__device__ inline int FirstTile(const TileItem& item) {
  return item.first_key / kKeys;
}
// At least one: of an item without keys all are hidden.
template <int kKeys>
__device__ inline int TilesOf(const TileItem& item) {
  return max(1, (item.num_keys + kKeys - 1) / kKeys - FirstTile<kKeys>(item));
}

// Hides keys from a thread's rows, which are `row` and row + 8 of the block's: those before each row's start and beyond
// its limit.
template <int kKeys>
class Limits {
 public:
  static int64_t Count(const DeviceCall& call) { return call.num_wide_items; }
  // False: the block has no item.
  __device__ static bool Get(const DeviceCall& call, TileItem& item) {
    item = call.wide_items[blockIdx.x];
    return true;
  }

  __device__ Limits(const DeviceCall&, const DeviceProblem&, const TileItem& item, int row) {
    const int32_t before = FirstTile<kKeys>(item) * kKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      starts_[half] = StartOf(item, row + half * 8) - before;
      limits_[half] = LimitOf(item, row + half * 8) - before;
      start_ = max(start_, starts_[half]);
      if (row + half * 8 < RowsOf(item)) least_ = min(least_, limits_[half]);
    }
    for (int step = 4; step < kWarpSize; step *= 2) {
      start_ = max(start_, __shfl_xor_sync(kWholeWarp, start_, step));
      least_ = min(least_, __shfl_xor_sync(kWholeWarp, least_, step));
    }
  }
  __device__ void Fetch(int) {}
  __device__ void Hide(int tile, int first_column, float (&scores)[kKeys / 8][4]) const {
    if (start_ <= tile * kKeys && least_ >= (tile + 1) * kKeys) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t before = tile * kKeys + first_column;
      MaskRow(starts_[half] - before, limits_[half] - before, half, scores);
    }
  }
  __device__ bool HasEdges(int half) const { return limits_[half] > 0; }

 private:
  int32_t starts_[2], limits_[2];
  int32_t start_ = 0, least_ = 0x7FFFFFFF;  // the most start and the least limit of the warp's rows
};

// Likewise, for drawn dense heads: the pairs whose bits are not set.
template <int kKeys>
class Bits {
  static constexpr int kRuns = kKeys / kTileKeys;

 public:
  static int64_t Count(const DeviceCall& call) { return call.num_dense_items; }
  // Two items whose bits are neighbours go to the block of the first.
  __device__ static bool Get(const DeviceCall& call, TileItem& item) {
    const RowItem& first = call.dense_items[blockIdx.x];
    const DeviceProblem& problem = call.problems[first.problem];
    if (!IsWideDense(call, problem) || !IsDenseHead(call, problem, first.head) ||
        !HasBits(call, problem, first.head, first.first_query)) {
      return false;
    }
    const HeadBits& bits = call.head_bits[problem.count + first.head];
    if ((first.first_query - bits.first) % kWideQueries != 0) return false;
    const int32_t queries = min(kWideQueries, bits.end - first.first_query);
    item = {first.problem, first.head, first.first_query, queries, problem.tokens};
    return true;
  }

  __device__ Bits(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, int row)
      : tokens_(problem.tokens) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + half * 8 >= item.queries) continue;
      from_[half] = TileWords(call, problem, item.head, item.first_query + row + half * 8, 0, false);
    }
  }
  // The words of a tile are on their way while its scores are computed.
  __device__ void Fetch(int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int at = tile * kRuns + run;
        const bool there = from_[half] != nullptr && at * kTileKeys < tokens_;
        words_[half][run] = there ? from_[half][int64_t{at} * kTileQueries] : 0;
        seen_[half] |= words_[half][run] != 0;
      }
    }
  }
  __device__ void Hide(int, int first_column, float (&scores)[kKeys / 8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) HideRow(words_[half][run], first_column, half, run, scores);
    }
  }
  __device__ bool HasEdges(int half) const { return seen_[half]; }

 private:
  const int32_t tokens_;
  const uint64_t* from_[2] = {};  // the words of the thread's rows in the first run of keys; null: there is no row
  uint64_t words_[2][kRuns];
  bool seen_[2] = {};
};

// The thread's part of the item's queries, rounded; zeros for rows that it does not have.
template <int kDim>
__device__ inline void LoadQueries(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, int row,
                                   int first_column, uint32_t (&queries)[kDim / 16][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool there = row + half * 8 < RowsOf(item);
    const int64_t place = there ? QueryPlace(call, problem, item, row + half * 8) + first_column : 0;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      queries[i / 2][half + i % 2 * 2] = there ? QueryPair(call, place + i * 8) : 0;
    }
  }
}

// A row of keys, and of values, has those of all heads side by side: one matrix of all heads' columns. (A map of a
// matrix for each head would have strides that do not grow, which is not documented to work.)
EDGEWISE_HOST_DEVICE inline bool HeadsLieInRows(const DeviceCall& call) {
  return call.k16_head_stride < call.k16_stride;
}

// By one thread: copies the item's keys and values, a tile at a time.
template <int kDim>
__device__ inline void CopyTiles(const TensorMap& keys, const TensorMap& values, const DeviceCall& call,
                                 const DeviceProblem& problem, const TileItem& item, int tiles, Shared<kDim>& shared) {
  using Of = Shared<kDim>;
  const auto key_head = static_cast<int32_t>(KeyHead(call, item.head));
  const bool in_rows = HeadsLieInRows(call);
  const int first_column = in_rows ? key_head * kDim : 0, matrix = in_rows ? 0 : key_head;
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages, phase = tile / kStages % 2;
    const auto copy = [&](const TensorMap& map, typename Of::Tile& to, SharedBarrier& free, SharedBarrier& full) {
      WaitFor(free, phase ^ 1);
      const int first = (FirstTile<kKeys>(item) + tile) * kKeys;
      const int runs = item.num_keys - first > kMapRows ? 2 : 1;
      ArriveExpecting(full, runs * kMapRows * kDim * static_cast<int>(sizeof(__nv_bfloat16)));
      for (int run = 0; run < runs; ++run) {
        const int place = first + run * kMapRows;
        const int64_t row = problem.first_row + (item.keys == nullptr ? place : item.keys[place]);
#pragma unroll
        for (int block = 0; block < Of::kColumnBlocks; ++block) {
          CopyBox(map, first_column + block * kMapColumns, row, matrix, to[block][run * kMapRows], full);
        }
      }
    };
    copy(keys, shared.keys[stage], shared.keys_free[stage], shared.keys_full[stage]);
    copy(values, shared.values[stage], shared.values_free[stage], shared.values_full[stage]);
  }
}

// By the threads of both warpgroups: the values from row `first` on become zeros. The rows that were copied there
// belong to other sequences, and may not be finite.
template <int kDim>
__device__ inline void ClearValues(int first, typename Shared<kDim>::Tile& values, SharedBarrier& cleared) {
  constexpr int kPieces = kMapColumns / 8;  // of 16 bytes
  for (int i = first * kPieces + static_cast<int>(threadIdx.x) - kWarpgroup; i < kKeys * kPieces; i += 2 * kWarpgroup) {
#pragma unroll
    for (int block = 0; block < Shared<kDim>::kColumnBlocks; ++block) {
      void* const piece = values[block][i / kPieces] + i % kPieces * 8;
      *static_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
    }
  }
  ShowToProducts();
  Arrive(cleared);
  WaitFor(cleared, 0);
}

// Writes what this thread has of the rows `row` and `row` + 8, whose sums are complete.
template <typename Edges, int kBlocks>
__device__ inline void WriteQueries(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, int row,
                                    int first_column, const Edges& edges, const OnlineSoftmax (&states)[2],
                                    const float (&sums)[kBlocks][kMapColumns / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= RowsOf(item)) continue;
    const float scale = states[half].Normalizer(edges.HasEdges(half));
    const OutRow out = OutRowOf(call, problem, item, row + half * 8);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int first = block * kMapColumns + first_column;
      WriteRow([&](int column, const float(&pair)[2]) { out.Put<true>(first + column, pair); }, kMapColumns, half,
               scale, sums[block]);
    }
  }
}

// The 64 queries of warpgroup `mine`.
template <template <int> typename EdgesOf, int kDim>
__device__ inline void AttendQueries(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item,
                                     int tiles, int mine, Shared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, first_column = lane % 4 * 2;
  const int row = mine * kTileQueries + static_cast<int>(threadIdx.x) / kWarpSize % 4 * kWarpQueries + lane / 4;
  const bool leads = threadIdx.x % kWarpgroup == 0;
  EdgesOf<kKeys> edges(call, problem, item, row);
  uint32_t queries[kDim / 16][4];
  LoadQueries<kDim>(call, problem, item, row, first_column, queries);
  OnlineSoftmax states[2];
  float shrink[2], scores[kKeyTiles][4], sums[kDim / kMapColumns][kMapColumns / 8][4] = {};
  uint32_t weights[kKeys / 16][4];

  const auto start_scores = [&](int stage) {
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const uint64_t keys = SharedMatrix(shared.keys[stage][step / 4]) + 2 * (step % 4);
      Multiply<kKeyTiles, false>(scores, queries[step], keys, step > 0);
    }
    CommitProducts();
  };
  const auto start_values = [&](int stage) {
#pragma unroll
    for (int block = 0; block < kDim / kMapColumns; ++block) Hold(sums[block]);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int block = 0; block < kDim / kMapColumns; ++block) {
        Multiply<kMapColumns / 8, true>(sums[block], weights[step],
                                        SharedMatrix(shared.values[stage][block]) + 128 * step, true);
      }
    }
    CommitProducts();
  };
  const auto hold_sums = [&] {
#pragma unroll
    for (int block = 0; block < kDim / kMapColumns; ++block) Hold(sums[block]);
  };
  const auto weigh = [&](int tile) {
    Hold(scores);
    if (leads) Arrive(shared.keys_free[tile % kStages]);
    edges.Hide(tile, first_column, scores);
    WeighTile(call.scale * kLog2E, scores, states, shrink);
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const float* const pair = scores[i / 4 * 2 + i % 4 / 2] + i % 2 * 2;
      weights[i / 4][i % 4] = PackBf16(pair[0], pair[1]);
    }
  };

  edges.Fetch(0);
  WaitFor(shared.keys_full[0], 0);
  start_scores(0);
  WaitForProducts<0>();
  weigh(0);
  pack();
  for (int tile = 1; tile < tiles; ++tile) {
    const int stage = tile % kStages, before = (tile - 1) % kStages;
    edges.Fetch(tile);
    WaitFor(shared.keys_full[stage], tile / kStages % 2);
    if (mine == 1 || tile > 1) TakeTurn(mine);
    start_scores(stage);
    WaitFor(shared.values_full[before], (tile - 1) / kStages % 2);
    start_values(before);
    if (mine == 0 || tile + 1 < tiles) PassTurn(mine);
    WaitForProducts<1>();
    weigh(tile);
    WaitForProducts<0>();
    hold_sums();
    if (leads) Arrive(shared.values_free[before]);
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sums[i / 32][i / 4 % 8][i % 4] *= shrink[i % 4 / 2];
    pack();
  }
  const int last = (tiles - 1) % kStages, here = item.num_keys - (FirstTile<kKeys>(item) + tiles - 1) * kKeys;
  WaitFor(shared.values_full[last], (tiles - 1) / kStages % 2);
  if (here < kKeys) ClearValues<kDim>(here, shared.values[last], shared.cleared);
  start_values(last);
  WaitForProducts<0>();
  hold_sums();

  AddStates(states);
  WriteQueries(call, problem, item, row, first_column, edges, states, sums);
}

// kDim: columns of queries, keys and values. EdgesOf: Limits or Bits.
template <template <int> typename EdgesOf, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    AttendTilesWide(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values,
                    const __grid_constant__ DeviceCall call) {
#ifdef EDGEWISE_HAS_WGMMA
  unsigned char* const raw = DynamicShared();
  auto& shared = *reinterpret_cast<Shared<kDim>*>(raw + (-reinterpret_cast<uintptr_t>(raw) & 1023));
  TileItem item;
  if (!EdgesOf<kKeys>::Get(call, item)) return;
  const DeviceProblem& problem = call.problems[item.problem];
  if (Cancelled(problem)) return;
  const int tiles = TilesOf<kKeys>(item);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(shared.keys_full[stage], 1);
      InitBarrier(shared.values_full[stage], 1);
      InitBarrier(shared.keys_free[stage], 2);
      InitBarrier(shared.values_free[stage], 2);
    }
    InitBarrier(shared.cleared, 2 * kWarpgroup);
    PublishBarriers();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (group == 0) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) CopyTiles<kDim>(keys, values, call, problem, item, tiles, shared);
  } else {
    TakeRegisters<240>();
    AttendQueries<EdgesOf, kDim>(call, problem, item, tiles, group - 1, shared);
  }
#endif
}

}  // namespace edgewise::cuda::tiles_wide

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_TILES_WIDE_CUH_
