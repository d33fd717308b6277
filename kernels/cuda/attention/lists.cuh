// The edges that a draw leaves in memory, and their readers: attention, caps, reports.
//
// A head that is drawn by events has lists: for each query its keys, ascending. Any other head has bits, in tiles of
// kTileQueries queries and kTileKeys keys: bit j of word i is query i and key j of the tile. The rows of the round that
// are in memory can be read.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/attention/event_draw.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kRowWarps = 8;  // of a block that has a row item
inline constexpr int kRowThreads = kRowWarps * kWarpSize;

inline constexpr uint32_t kParallelFlag = 1u << 31;  // of a listed key: the edge may count more than once

// Blocks for a launch over `items`, each of which takes every gridDim.x-th: in the first round of a pass over all edges
// one a block, else so few that a round without any costs next to nothing.
inline constexpr int64_t kBoundedBlocks = 1024;
inline int64_t BlocksFor(const DeviceCall& call, int64_t items) {
  const bool bounded = !IsFirstRound(call) || call.round.draws != Draws::kAll;
  return bounded && items > kBoundedBlocks ? kBoundedBlocks : items;
}

// The round has no drawn edges in memory.
__device__ inline bool NothingDrawn(const DeviceCall& call) {
  return call.state == nullptr || call.state->mark == kNoMark;
}

// Calls visit(item, its problem) for the block's row items of drawn problems, where some edges are in memory. By all
// threads of the block together.
template <typename Visit>
__device__ void ForDrawnItems(const DeviceCall& call, const Visit& visit) {
  if (NothingDrawn(call)) return;
#pragma unroll 1
  for (uint32_t index = blockIdx.x; index < call.num_row_items; index += gridDim.x) {
    const RowItem item = call.row_items[index];
    const DeviceProblem& problem = call.problems[item.problem];
    if (problem.kind == PatternKind::kDrawn) visit(item, problem);
  }
}

__device__ inline RowPlace& PlaceOfRow(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                       int32_t query) {
  return call.places[problem.first_place + int64_t{head} * problem.tokens + query];
}

__device__ inline bool HasBits(const DeviceCall& call, const DeviceProblem& problem, int32_t head, int32_t query) {
  const HeadBits& bits = call.head_bits[problem.count + head];
  return bits.mark == call.state->mark && query >= bits.first && query < bits.end;
}

// The words of a head's bits for one tile of keys, of the row and of the next ones behind it, where HasBits.
// `parallel`: of the second plane, whose edges may count more than once; law poisson_multi.
__device__ inline uint64_t* TileWords(const DeviceCall& call, const DeviceProblem& problem, int32_t head, int32_t query,
                                      int32_t tile, bool parallel) {
  const HeadBits& bits = call.head_bits[problem.count + head];
  const int64_t tiles = (problem.tokens + kTileKeys - 1) / kTileKeys;
  const int64_t blocks = (bits.end - bits.first + kTileQueries - 1) / kTileQueries;
  const int32_t row = query - bits.first;
  const int64_t block = row / kTileQueries + (parallel ? blocks : 0);
  return reinterpret_cast<uint64_t*>(call.pool + bits.begin) + (block * tiles + tile) * kTileQueries +
         row % kTileQueries;
}

// Some edges of the problem may have a multiplicity above 1.
__device__ inline bool HasMultiplicity(const DeviceProblem& problem) {
  return problem.kind == PatternKind::kDrawn ? problem.law == Law::kPoissonMulti : problem.multiplicity != nullptr;
}

// The cut and tau of the problem's cap.
__device__ inline EdgeCut CutOf(const DeviceCall& call, const DeviceProblem& problem) {
  return problem.cap < 0 || problem.kind != PatternKind::kDrawn ? EdgeCut{~uint64_t{0}, 0, CapRule::kRandom}
                                                                : call.caps[problem.cap].cut;
}
__device__ inline double TauOf(const DeviceCall& call, const DeviceProblem& problem) {
  return problem.cap < 0 || problem.kind != PatternKind::kDrawn ? 1.0 : call.caps[problem.cap].tau;
}

// An edge that is not forced, in the order in which a cap keeps edges. `age`: of a listed one. Out of line: only caps
// ask.
__device__ __noinline__ inline AgedEdge PlaceOf(const DeviceCall& call, const DeviceProblem& problem,
                                                const RowItem& item, CapRule keep, int32_t query, int32_t key,
                                                const uint32_t* age) {
  const DrawnPairs pairs(call, problem, item.head);
  const uint64_t order =
      EdgeOrder(static_cast<uint32_t>(item.problem), static_cast<uint32_t>(call.num_heads),
                static_cast<uint32_t>(item.head), static_cast<uint32_t>(query), static_cast<uint32_t>(key));
  if (keep == CapRule::kProbable) return {RateRank(pairs.Rate(query, key)), order};
  if (age != nullptr) return {AgeBits(EventAge(*age)), order};
  return {EdgeAgeBits(problem.law, pairs.Uniform(query, key), pairs.Rate(query, key)), order};
}

// Multiplicity of an edge under a cap whose first dropped edge has the age tau. Out of line: few edges need it.
__device__ __noinline__ inline int EdgeCount(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                             int32_t query, int32_t key, double tau) {
  const DrawnPairs pairs(call, problem, head);
  const DeviceEventHead* events = EventHeadOf(call, problem, head);
  if (events != nullptr) return max(1, CountEvents(problem, *events, pairs, query, key, tau));
  return max(1, EdgeMultiplicity(pairs.Uniform(query, key), tau * static_cast<double>(pairs.Rate(query, key))));
}

// The keys of one query of an item, by one warp, ascending.
class RowEdges {
 public:
  // A part of the keys that a warp takes at once.
  static constexpr int kStepWords = 8;  // of bits, a quarter of a word a thread
  static constexpr int kMostKeys = kStepWords * 64;

  __device__ RowEdges(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item, int32_t query)
      : call_(call), problem_(problem), item_(item), query_(query), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    if (problem.kind != PatternKind::kDrawn) {
      const int64_t* offsets =
          problem.row_offsets + item.head * (problem.tokens - problem.first_query + 1) + query - problem.first_query;
      keys_ = reinterpret_cast<const uint32_t*>(problem.given_keys) + offsets[0];
      multiplicity_ = problem.multiplicity == nullptr ? nullptr : problem.multiplicity + offsets[0];
      count_ = IsFirstRound(call) ? static_cast<int32_t>(offsets[1] - offsets[0]) : -1;
    } else if (IsEventHead(call, problem, item.head)) {
      const RowPlace place = PlaceOfRow(call, problem, item.head, query);
      keys_ = call.pool + place.begin;
      if (problem.cap >= 0) ages_ = keys_ + place.drawn;
      count_ = place.mark == call.state->mark ? static_cast<int32_t>(place.count) : -1;
    } else {
      count_ = HasBits(call, problem, item.head, query) ? (problem.tokens + kTileKeys - 1) / kTileKeys : -1;
    }
  }

  // Whether the round has the row; else it has no edges here.
  __device__ bool here() const { return count_ >= 0; }
  __device__ bool listed() const { return keys_ != nullptr; }
  // Listed keys, or words of bits.
  __device__ int32_t count() const { return count_; }
  __device__ const uint32_t* keys() const { return keys_; }
  __device__ const uint32_t* ages() const { return ages_; }
  __device__ const int32_t* multiplicity() const { return multiplicity_; }
  __device__ uint64_t Word(int32_t tile, bool parallel = false) const {
    return *TileWords(call_, problem_, item_.head, query_, tile, parallel);
  }

  // Calls visit(key with its flag, place in the list or -1) for every edge, by single threads.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    if (listed()) {
      for (int32_t e = lane_; e < count_; e += kWarpSize) visit(keys_[e], e);
      return;
    }
    const bool multi = HasMultiplicity(problem_);
    for (int32_t tile = lane_; tile < count_; tile += kWarpSize) {
      const uint64_t parallel = multi ? Word(tile, true) : 0;
      for (uint64_t bits = Word(tile); bits != 0; bits &= bits - 1) {
        const int bit = __ffsll(static_cast<long long>(bits)) - 1;
        visit(static_cast<uint32_t>(tile * kTileKeys + bit) | ((parallel >> bit & 1) != 0 ? kParallelFlag : 0), -1);
      }
    }
  }

  // Edges of the row; the same in all threads of the warp.
  __device__ int32_t Count() const {
    if (listed()) return count_;
    int32_t sum = 0;
    for (int32_t tile = lane_; tile < count_; tile += kWarpSize) sum += __popcll(Word(tile));
    for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    return sum;
  }

  // Writes keys, from key `from` on, behind to[size - 1], until all are written or there is no room for a step beyond
  // `most`. Returns the new size; `from` moves on. `to` is shared memory of the warp.
  __device__ int Take(int32_t& from, uint32_t* to, int size) const {
    if (listed()) {
      const int taken = min(count_ - from, kMostKeys);
      for (int e = lane_; e < taken; e += kWarpSize) to[size + e] = keys_[from + e];
      from += taken;
      return size + taken;
    }
    const int32_t tile = from + lane_ / 4;
    const int shift = lane_ % 4 * 16;
    uint64_t bits = tile < count_ ? Word(tile) >> shift & 0xFFFFu : 0;
    const uint64_t parallel = bits != 0 && HasMultiplicity(problem_) ? Word(tile, true) >> shift : 0;
    int through = __popcll(bits);
    for (int step = 1; step < kWarpSize; step *= 2) {
      const int before = __shfl_up_sync(kWholeWarp, through, static_cast<unsigned>(step));
      if (lane_ >= step) through += before;
    }
    uint32_t* next = to + size + through - __popcll(bits);
    for (; bits != 0; bits &= bits - 1) {
      const int bit = __ffsll(static_cast<long long>(bits)) - 1;
      *next++ =
          static_cast<uint32_t>(tile * kTileKeys + shift + bit) | ((parallel >> bit & 1) != 0 ? kParallelFlag : 0);
    }
    from += kStepWords;
    return size + __shfl_sync(kWholeWarp, through, kWarpSize - 1);
  }
  __device__ bool Done(int32_t from) const { return from >= count_; }

  // How often a key with its flag counts. Place: in the list, where listed.
  __device__ int Multiplicity(uint32_t key, int32_t place, double tau) const {
    if (multiplicity_ != nullptr) return multiplicity_[place];
    return (key & kParallelFlag) == 0
               ? 1
               : EdgeCount(call_, problem_, item_.head, query_, static_cast<int32_t>(key & ~kParallelFlag), tau);
  }

 private:
  const DeviceCall& call_;
  const DeviceProblem& problem_;
  const RowItem& item_;
  const int32_t query_;
  const int lane_;
  const uint32_t* keys_ = nullptr;  // null: bits
  const uint32_t* ages_ = nullptr;
  const int32_t* multiplicity_ = nullptr;
  int32_t count_;  // -1: the row is not here
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_LISTS_CUH_
