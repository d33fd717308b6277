// The edges of row items: drawn exactly as kernels/draw.h says, or read from given rows. Blocks that call these
// functions have kDrawThreads threads, all of which take part. Compile with -fmad=false.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_rows.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// First of given_keys[begin..end) that is at least `key`.
__device__ inline int64_t FirstGiven(const DeviceProblem& problem, int64_t begin, int64_t end, int32_t key) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (problem.given_keys[middle] < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <typename Visit>
__device__ void VisitGiven(const DeviceProblem& problem, const RowItem& item, int32_t chunk, Visit& visit) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t first_key = static_cast<int64_t>(chunk) * kChunkKeys;
  for (int row = warp; row < item.queries; row += kDrawWarps) {
    const int64_t* offsets = GivenRow(problem, item.head, item.first_query + row);
    const int64_t begin = FirstGiven(problem, offsets[0], offsets[1], static_cast<int32_t>(first_key));
    for (int64_t e = begin + lane; e < offsets[1]; e += kWarpSize) {
      const int32_t key = problem.given_keys[e];
      if (key >= first_key + kChunkKeys) break;
      visit(row, key, true, uint64_t{0}, 1.0f);
    }
  }
}

// Some edges of the problem may have a multiplicity above 1.
__device__ inline bool HasMultiplicity(const DeviceProblem& problem) {
  return problem.kind == PatternKind::kDrawn ? problem.law == Law::kPoissonMulti : problem.multiplicity != nullptr;
}

// The cut and tau of the problem's cap, for DrawBits.
__device__ inline EdgeCut CutOf(const DeviceCall& call, const DeviceProblem& problem) {
  return problem.cap < 0 || problem.kind != PatternKind::kDrawn ? EdgeCut{~uint64_t{0}, 0, KeepRule::kRandom}
                                                                : call.caps[problem.cap].cut;
}
__device__ inline double TauOf(const DeviceCall& call, const DeviceProblem& problem) {
  return problem.cap < 0 || problem.kind != PatternKind::kDrawn ? 1.0 : call.caps[problem.cap].tau;
}

__device__ __noinline__ inline uint64_t RateRankOf(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                                   int32_t query, int32_t key) {
  return RateRank(DrawnPairs(call, problem, head).Rate(query, key));
}

// A visited edge that is not forced, in the order in which a cap keeps edges.
__device__ inline AgedEdge PlaceOf(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                                   KeepRule keep, int row, int32_t key, uint64_t uniform, float rate) {
  const int32_t query = item.first_query + row;
  const uint64_t order =
      EdgeOrder(static_cast<uint32_t>(item.problem), static_cast<uint32_t>(call.num_heads),
                static_cast<uint32_t>(item.head), static_cast<uint32_t>(query), static_cast<uint32_t>(key));
  if (keep == KeepRule::kRandom) return {VisitedAgeBits(problem.law, uniform, rate), order};
  // Events come without their rate.
  return {(uniform & kIsEvent) != 0 ? RateRankOf(call, problem, item.head, query, key) : RateRank(rate), order};
}

// Multiplicity of an edge. Out of line: few edges need it.
__device__ __noinline__ inline int EdgeCount(const DeviceCall& call, const DeviceProblem& problem, int32_t head,
                                             int32_t query, int32_t key, double tau) {
  if (problem.kind == PatternKind::kDrawn) {
    const DrawnPairs pairs(call, problem, head);
    const DeviceEventHead* events = EventHeadOf(call, problem, head);
    if (events != nullptr) return max(1, CountEvents(problem, *events, pairs, query, key, tau));
    const double rate = tau * static_cast<double>(pairs.Rate(query, key));
    return max(1, EdgeMultiplicity(pairs.Uniform(query, key), rate));
  }
  const int64_t* offsets = GivenRow(problem, head, query);
  return problem.multiplicity[FirstGiven(problem, offsets[0], offsets[1], key)];
}

// How often an edge of the item's rows counts, under a cap whose first dropped edge has the age tau. Not cheap.
__device__ inline int MultiplicityOf(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item, int row,
                                     int32_t key, double tau) {
  return HasMultiplicity(problem) ? EdgeCount(call, problem, item.head, item.first_query + row, key, tau) : 1;
}

// Fills bits [kRowsPerItem][kChunkWords] in shared memory: key j of the chunk is bit j % 64 of word j / 64, set iff the
// pair is an edge that is forced or before the cut. `parallel`: likewise, set iff the edge's multiplicity is above 1;
// null for problems without multiplicity. Ends with a block barrier.
__device__ inline void DrawBits(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                                const EdgeCut& cut, double tau, int32_t chunk, DrawScratch& scratch, uint64_t* bits,
                                uint64_t* parallel) {
  for (int i = static_cast<int>(threadIdx.x); i < kRowsPerItem * kChunkWords; i += kDrawThreads) {
    bits[i] = 0;
    if (parallel != nullptr) parallel[i] = 0;
  }
  __syncthreads();
  const int32_t first_key = chunk * kChunkKeys;
  const auto set = [&](uint64_t* to, int row, int32_t key) {
    const int bit = key - first_key;
    atomicOr(reinterpret_cast<unsigned*>(to + row * kChunkWords) + bit / 32, 1u << (bit % 32));
  };
  if (problem.kind == PatternKind::kDrawn) {
    const bool all = cut.age_bits == ~uint64_t{0};
    const auto visit = [&](int row, int32_t key, bool forced, uint64_t uniform, float rate) {
      if (IsRepeated(uniform)) {
        if (parallel != nullptr && VisitedParallel(uniform, tau, rate)) set(parallel, row, key);
        return;
      }
      if (!all && !forced) {
        const AgedEdge edge = PlaceOf(call, problem, item, cut.keep, row, key, uniform, rate);
        if (!IsBefore(edge, {cut.age_bits, cut.order})) return;
      }
      set(bits, row, key);
      if (parallel != nullptr && VisitedParallel(uniform, tau, rate)) set(parallel, row, key);
    };
    RowDrawer<const decltype(visit)>(call, problem, item, chunk, tau, !all, scratch, visit).Run();
  } else {
    const auto visit = [&](int row, int32_t key, bool, uint64_t, float) {
      set(bits, row, key);
      if (parallel != nullptr && MultiplicityOf(call, problem, item, row, key, tau) > 1) set(parallel, row, key);
    };
    VisitGiven(problem, item, chunk, visit);
  }
  __syncthreads();
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_CUH_
