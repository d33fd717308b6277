// Draws the heads that are not drawn by events into bits: every pair is asked, by tensor cores (draw_fragment.cuh).
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/draw_fragment.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kWarps = kTileQueries / kWarpQueries;
// Tiles of keys that a warp draws, so that the pairs that no byte settles are enough for all of its threads.
constexpr int kTilesAtOnce = 8;
constexpr int64_t kMostBlocks = 8192;  // of a launch, so that one without such heads costs next to nothing

// A block's words and open pairs, by warp.
struct Drawn {
  uint32_t words[kWarps][kTilesAtOnce][kWarpSize];  // of FragmentDraw, tile by tile
  uint16_t open[kWarps][2 * kWarpSize];             // pairs that may be edges: tile, lane and bit of `words`
};

class TileDraw {
 public:
  __device__ TileDraw(const FragmentDraw& draw, int32_t tokens, uint32_t (&words)[kTilesAtOnce][kWarpSize],
                      uint16_t* open)
      : draw_(draw), tokens_(tokens), words_(words), open_(open), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  // Draws the tiles first.. up to kTilesAtOnce of them, as words.
  __device__ void Run(int first) const {
    int size = 0;  // of `open_`
#pragma unroll 1
    for (int tile = 0; tile < kTilesAtOnce && (first + tile) * kTileKeys < tokens_; ++tile) {
      FragmentDraw::Settled settled = draw_.Begin((first + tile) * kTileKeys);
      words_[tile][lane_] = settled.edges;
      for (;;) {  // a pair of each thread that has one
        const unsigned have = __ballot_sync(kWholeWarp, settled.open != 0);
        if (have == 0) break;
        if (settled.open != 0) {
          const int bit = __ffs(static_cast<int>(settled.open)) - 1;
          const int place = size + __popc(have & ((1u << lane_) - 1));
          open_[place] = static_cast<uint16_t>((tile * kWarpSize + lane_) * 32 + bit);
          settled.open &= settled.open - 1;
        }
        size += __popc(have);
        if (size < kWarpSize) continue;
        size -= kWarpSize;
        Settle(first, size, size + kWarpSize);
      }
    }
    Settle(first, 0, size);
  }

 private:
  __device__ void Settle(int first, int begin, int end) const {
    __syncwarp(kWholeWarp);
    if (begin + lane_ < end) {
      const int pair = open_[begin + lane_], tile = pair / (32 * kWarpSize), of_lane = pair / 32 % kWarpSize;
      if (draw_.IsEdge((first + tile) * kTileKeys, of_lane, pair % 32))
        atomicOr(&words_[tile][of_lane], 1u << pair % 32);
    }
    __syncwarp(kWholeWarp);
  }

  const FragmentDraw& draw_;
  const int32_t tokens_;
  uint32_t (&words_)[kTilesAtOnce][kWarpSize];
  uint16_t* const open_;
  const int lane_;
};

// The edges of one query and tile whose multiplicity is above 1.
__device__ uint64_t ParallelOf(const DrawnPairs& pairs, int32_t query, int32_t first_key, uint64_t edges, double tau) {
  uint64_t parallel = 0;
  for (uint64_t rest = edges; rest != 0; rest &= rest - 1) {
    const int bit = __ffsll(static_cast<long long>(rest)) - 1;
    const double rate = tau * static_cast<double>(pairs.Rate(query, first_key + bit));
    if (HasParallel(pairs.Uniform(query, first_key + bit), rate)) parallel |= uint64_t{1} << bit;
  }
  return parallel;
}

// Draws an item and kTilesAtOnce tiles of keys.
__device__ void DrawTiles(const DeviceCall& call, const RowItem& item, int first, Drawn& drawn) {
  const DeviceProblem& problem = call.problems[item.problem];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row = warp * kWarpQueries;
  const FragmentRows rows = {item.problem, item.head, item.first_query + first_row,
                             max(0, min(item.queries - first_row, kWarpQueries))};
  const FragmentDraw draw(call, rows);
  const bool any = rows.rows > 0;
  if (any) TileDraw(draw, problem.tokens, drawn.words[warp], drawn.open[warp]).Run(first);
  const DrawnPairs pairs(call, problem, item.head);
  for (int tile = 0; tile < kTilesAtOnce && (first + tile) * kTileKeys < problem.tokens; ++tile) {
    uint64_t* words = TileWords(call, problem, item.head, rows.first_query, first + tile, false);
    uint64_t* parallel =
        HasMultiplicity(problem) ? TileWords(call, problem, item.head, rows.first_query, first + tile, true) : nullptr;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t keys = any ? KeysOf(drawn.words[warp][tile][lane] >> (16 * half) & 0xFFFFu, lane % 4) : 0;
      const int row = lane / 4 + 8 * half;
      if (lane % 4 != 0) continue;
      words[row] = keys;
      if (parallel != nullptr && row < rows.rows) {
        parallel[row] =
            ParallelOf(pairs, rows.first_query + row, (first + tile) * kTileKeys, keys, TauOf(call, problem));
      }
    }
  }
}

// The heads that have room in this round. `again`: where their bits are from an earlier one, those under a cap.
__global__ void __launch_bounds__(kWarps* kWarpSize)
    DrawBits(const __grid_constant__ DeviceCall call, int32_t splits, bool again) {
  __shared__ Drawn drawn;
  const uint32_t mark = call.state->mark;
  const bool fresh = mark == call.round.mark;
  if (mark == kNoMark || !(fresh || again) || call.state->bits == 0) return;
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < call.num_dense_items * splits; unit += gridDim.x) {
    const RowItem item = call.dense_items[unit / splits];
    const int first = static_cast<int>(unit % splits) * kTilesAtOnce;
    const DeviceProblem& problem = call.problems[item.problem];
    if (problem.kind != PatternKind::kDrawn || first * kTileKeys >= problem.tokens) continue;
    if (!fresh && problem.cap < 0) continue;
    if (!HasBits(call, problem, item.head, item.first_query) || Dropped(problem)) continue;
    DrawTiles(call, item, first, drawn);
  }
}

}  // namespace

cudaError_t DrawPairHeads(cudaStream_t stream, const DeviceCall& call, bool again) {
  const int64_t splits = (call.most_tokens + kTilesAtOnce * kTileKeys - 1) / (kTilesAtOnce * kTileKeys);
  const int64_t units = call.num_dense_items * splits;
  return Launch(stream, BlocksFor(call, units < kMostBlocks ? units : kMostBlocks), kWarps * kWarpSize, 0,
                kLoaded<DrawBits>, call, static_cast<int32_t>(splits), again);
}

}  // namespace edgewise::cuda
