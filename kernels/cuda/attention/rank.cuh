// Finds the element of a given rank, among counts of bins and among listed edges. All threads of a block, or of a warp,
// call a function together.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_RANK_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_RANK_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kSearchThreads = 1024;  // of a block that calls Total and Find
inline constexpr int kSearchWarps = kSearchThreads / kWarpSize;
inline constexpr int kSelectThreads = 256;  // of a block that calls Select
inline constexpr uint32_t kBinsPerWarp = kAgeBuckets / kSearchWarps;
inline constexpr uint32_t kBinsPerStep = 4 * kWarpSize;

// The lane that has the element of rank `rank`, where each lane of a warp has `mine`, in the order of lanes; kWarpSize
// if there are not that many. `before`: elements of earlier lanes. `all`: elements of the warp.
__device__ inline int LaneOfRank(uint64_t mine, uint64_t rank, uint64_t* before, uint64_t* all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  uint64_t through = mine;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const uint64_t earlier = __shfl_up_sync(kWholeWarp, through, static_cast<unsigned>(step));
    if (lane >= step) through += earlier;
  }
  *all = __shfl_sync(kWholeWarp, through, kWarpSize - 1);
  const unsigned beyond = __ballot_sync(kWholeWarp, through > rank);
  const int found = beyond == 0 ? kWarpSize : __ffs(static_cast<int>(beyond)) - 1;
  *before = __shfl_sync(kWholeWarp, through - mine, found % kWarpSize);
  return found;
}

// A block's view of the counts of one cap.
struct Search {
  uint64_t warp_sums[kSearchWarps];  // elements in its kBinsPerWarp bins
  // Set by Find.
  uint32_t bin;
  uint64_t count;   // elements in the bin
  uint64_t before;  // elements in earlier ones
};

// Four bins of this thread.
__device__ inline const BinCount* BinsOf(const BinCount* counts, uint32_t warp, uint32_t step) {
  return counts + warp * kBinsPerWarp + step * kBinsPerStep + threadIdx.x % kWarpSize * 4;
}

// Elements in all bins, known to all threads.
__device__ inline uint64_t Total(const BinCount* counts, Search& search) {
  const uint32_t warp = threadIdx.x / kWarpSize;
  uint64_t sum = 0;
  for (uint32_t step = 0; step < kBinsPerWarp / kBinsPerStep; ++step) {
    const BinCount* const bins = BinsOf(counts, warp, step);
    sum += bins[0] + bins[1] + bins[2] + bins[3];
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
  if (threadIdx.x % kWarpSize == 0) search.warp_sums[warp] = sum;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < kSearchWarps; ++w) total += search.warp_sums[w];
  return total;
}

// Finds the bin of the element of rank `rank` < Total, which has been called. All threads may read `search` afterwards.
__device__ inline void Find(const BinCount* counts, uint64_t rank, Search& search) {
  const uint32_t warp = threadIdx.x / kWarpSize;
  uint64_t before = 0;
  for (uint32_t w = 0; w < warp; ++w) before += search.warp_sums[w];
  if (before <= rank && rank < before + search.warp_sums[warp]) {  // one warp
    for (uint32_t step = 0; step < kBinsPerWarp / kBinsPerStep; ++step) {
      const BinCount* const bins = BinsOf(counts, warp, step);
      const uint64_t mine = bins[0] + bins[1] + bins[2] + bins[3];
      uint64_t earlier, all;
      const int found = LaneOfRank(mine, rank - before, &earlier, &all);
      if (found == kWarpSize) {
        before += all;
        continue;
      }
      if (static_cast<int>(threadIdx.x) % kWarpSize == found) {
        before += earlier;
        uint32_t place = 0;
        while (before + bins[place] <= rank) before += bins[place++];
        search.bin = warp * kBinsPerWarp + step * kBinsPerStep + static_cast<uint32_t>(found) * 4 + place;
        search.count = bins[place];
        search.before = before;
      }
      break;
    }
  }
  __syncthreads();
}

// Shared memory of Select.
struct Digits {
  uint32_t counts[256];
  uint32_t digit, before;
};

// The edge of rank `rank` < count of a list in any order, byte by byte from the highest; known to all threads.
__device__ inline AgedEdge Select(const AgedEdge* list, uint32_t count, uint32_t rank, Digits& digits) {
  AgedEdge selected = {0, 0};  // its bytes from `byte` on
  for (int byte = 15; byte >= 0; --byte) {
    for (uint32_t i = threadIdx.x; i < 256; i += kSelectThreads) digits.counts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const AgedEdge edge = list[i];
      bool same = true;
      for (int above = 15; above > byte; --above) same &= ByteOf(edge, above) == ByteOf(selected, above);
      if (same) atomicAdd(digits.counts + ByteOf(edge, byte), 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarpSize) {
      const uint32_t* mine = digits.counts + threadIdx.x * 8;
      uint32_t sum = 0;
      for (int i = 0; i < 8; ++i) sum += mine[i];
      uint64_t before, all;
      if (LaneOfRank(sum, rank, &before, &all) == static_cast<int>(threadIdx.x)) {
        uint32_t place = 0;
        while (before + mine[place] <= rank) before += mine[place++];
        digits.digit = threadIdx.x * 8 + place;
        digits.before = static_cast<uint32_t>(before);
      }
    }
    __syncthreads();
    rank -= digits.before;
    const auto digit = static_cast<uint64_t>(digits.digit);
    if (byte < 8) {
      selected.order |= digit << (8 * byte);
    } else {
      selected.age_bits |= digit << (8 * (byte - 8));
    }
    __syncthreads();
  }
  return selected;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_RANK_CUH_
