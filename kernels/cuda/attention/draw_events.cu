// Draws the heads that are drawn by events into lists. A warp has a query at a time:
//   1. Forced pairs and accepted events set bits in shared memory, which sorts them and removes repeats.
//   2. The block reserves room for its rows' edges; the place in memory is not determined, the content is.
//   3. Keys are written, ascending. Under a cap the events come once more, and each edge gets its youngest age.
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/event_row.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/lists.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kMostWarps = 8;
constexpr int64_t kSharedGoal = 64 << 10;  // bytes of a block, so that others fit beside it
constexpr int kTableThreads = 256;

// The bits of a row in shared memory, by one warp.
struct RowBits {
  uint32_t* words;     // [words] key 32 w + b is bit b
  uint32_t* parallel;  // [words] the key has had several events; null: nobody asks
  uint32_t* before;    // [words / kWordsPerSum up] edges before these words
};

__device__ uint32_t CountBits(const RowBits& row, int words, int lane) {
  uint32_t sum = 0;
  // A thread has a run of sums, so that they ascend with the lane.
  const int sums = words / kWordsPerSum, run = (sums + kWarpSize - 1) / kWarpSize;
  const int begin = min(sums, lane * run), end = min(sums, begin + run);
  for (int i = begin; i < end; ++i) {
    row.before[i] = sum;
    for (int w = 0; w < kWordsPerSum; ++w) sum += static_cast<uint32_t>(__popc(row.words[i * kWordsPerSum + w]));
  }
  uint32_t through = sum;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const uint32_t earlier = __shfl_up_sync(kWholeWarp, through, static_cast<unsigned>(step));
    if (lane >= step) through += earlier;
  }
  for (int i = begin; i < end; ++i) row.before[i] += through - sum;
  __syncwarp(kWholeWarp);
  return __shfl_sync(kWholeWarp, through, kWarpSize - 1);
}

// Edges of the row before the key.
__device__ uint32_t PlaceOfKey(const RowBits& row, int32_t key) {
  const int word = key / 32, first = word / kWordsPerSum * kWordsPerSum;
  uint32_t place = row.before[word / kWordsPerSum];
  for (int w = first; w < word; ++w) place += static_cast<uint32_t>(__popc(row.words[w]));
  return place + static_cast<uint32_t>(__popc(row.words[word] & ((1u << (key % 32)) - 1)));
}

// Calls visit(key) for the query's forced pairs, by single threads.
template <typename Visit>
__device__ void ForForced(const DeviceProblem& problem, const DrawnPairs& pairs, int32_t query, int lane,
                          const Visit& visit) {
  if (!pairs.HasForced()) return;
  // Tokens of a forced pair are no further apart than their positions.
  const int32_t first = max(query - pairs.reach(), 0), last = min(query + pairs.reach(), problem.tokens - 1);
  for (int32_t key = first + lane; key <= last; key += kWarpSize) {
    if (pairs.Forced(query, key)) visit(key);
  }
}

__global__ void __launch_bounds__(kMostWarps* kWarpSize, 3) DrawLists(const __grid_constant__ DeviceCall call) {
  __shared__ OpenEvent queues[kMostWarps][EventRow::kQueue];
  __shared__ uint32_t counts[kMostWarps];
  __shared__ uint32_t base;
  const RowItem item = call.row_items[blockIdx.x];
  if (item.slot < 0) return;
  const DeviceProblem& problem = call.problems[item.problem];
  if (!IsEventHead(call, problem, item.head) || Dropped(problem)) return;
  const DeviceEventHead& head = call.event_heads[problem.event_head + item.head];
  const EdgeSlot& slot = call.slots[item.slot];
  const EdgeList list = ListOf(call, problem, slot);
  const DrawnPairs pairs(call, problem, item.head);
  const bool multi = problem.law == Law::kPoissonMulti;
  EventRow events(call, problem, head, pairs, queues[threadIdx.x / kWarpSize]);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int words = EventRowWords(problem.tokens);
  auto* own = reinterpret_cast<uint32_t*>(DynamicShared() + warp * EventRowBytes(problem.tokens, multi));
  const RowBits row = {own, multi ? own + words : nullptr, own + words * (multi ? 2 : 1)};
  for (int first = 0; first < item.queries; first += warps) {
    const int32_t query = item.first_query + first + warp;
    const bool mine = first + warp < item.queries;
    __syncwarp(kWholeWarp);  // the row before is listed
    for (int w = lane; w < words; w += kWarpSize) {
      row.words[w] = 0;
      if (multi) row.parallel[w] = 0;
    }
    __syncwarp(kWholeWarp);
    uint32_t count = 0;
    if (mine) {
      events.ForAccepted(query, kEventAgeOne, [&](int32_t key, uint32_t) {
        const uint32_t bit = 1u << (key % 32), old = atomicOr(row.words + key / 32, bit);
        if (multi && (old & bit) != 0) atomicOr(row.parallel + key / 32, bit);
      });
      __syncwarp(kWholeWarp);
      ForForced(problem, pairs, query, lane, [&](int32_t key) { atomicOr(row.words + key / 32, 1u << (key % 32)); });
      __syncwarp(kWholeWarp);
      count = CountBits(row, words, lane);
    }
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t sum = 0;
      for (int w = 0; w < warps; ++w) sum += counts[w];
      base = atomicAdd(list.used, sum);
      // So many edges are not drawn (ListRoom); were they, the rows would be left out and the call fail.
      if (base + uint64_t{sum} > static_cast<uint64_t>(slot.room)) {
        *call.full = 1;
        base = ~0u;
      }
    }
    __syncthreads();
    uint32_t begin = base;
    const bool full = begin == ~0u;
    for (int w = 0; w < warp; ++w) begin += counts[w];
    __syncthreads();  // `base` and `counts` are read
    if (!mine) continue;
    if (lane == 0) {
      list.begin[query - slot.first_query] = full ? 0 : begin;
      list.count[query - slot.first_query] = full ? 0 : count;
    }
    if (full) continue;
    for (int w = lane; w < words; w += kWarpSize) {
      uint32_t bits = row.words[w];
      if (bits == 0) continue;
      uint32_t place = begin + PlaceOfKey(row, w * 32);
      for (; bits != 0; bits &= bits - 1, ++place) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        const uint32_t flag = multi && (row.parallel[w] >> bit & 1u) != 0 ? kParallelFlag : 0;
        list.keys[place] = static_cast<uint32_t>(w * 32 + bit) | flag;
        if (list.ages != nullptr) list.ages[place] = ~0u;
      }
    }
    if (list.ages == nullptr) continue;
    __syncwarp(kWholeWarp);
    events.ForAccepted(query, kEventAgeOne,
                       [&](int32_t key, uint32_t age) { atomicMin(list.ages + begin + PlaceOfKey(row, key), age); });
  }
}

__global__ void __launch_bounds__(kTableThreads) ClearLists(const __grid_constant__ DeviceCall call, int32_t count) {
  const int64_t index = int64_t{blockIdx.x} * kTableThreads + threadIdx.x;
  if (index < count) *reinterpret_cast<uint32_t*>(call.drawn + call.slots[index].offset) = 0;
}

}  // namespace

cudaError_t DrawEventHeads(cudaStream_t stream, const DeviceCall& call, int64_t shared_memory) {
  if (call.num_event_heads == 0) return cudaSuccess;
  const int64_t of_warp = EventRowBytes(call.most_tokens, call.multi);
  const int64_t goal = of_warp > kSharedGoal ? shared_memory - kSharedApart : kSharedGoal;
  const auto warps = static_cast<int>(std::clamp<int64_t>(goal / of_warp, 1, kMostWarps));
  cudaError_t error = Launch(stream, (call.num_slots + kTableThreads - 1) / kTableThreads, kTableThreads, 0,
                             kLoaded<ClearLists>, call, static_cast<int32_t>(call.num_slots));
  if (error != cudaSuccess) return error;
  return Launch(stream, call.num_row_items, warps * kWarpSize, static_cast<size_t>(warps * of_warp), kLoaded<DrawLists>,
                call);
}

}  // namespace edgewise::cuda
