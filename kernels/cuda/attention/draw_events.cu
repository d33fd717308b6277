// Draws the heads that are drawn by events into lists. A warp has a query at a time:
//   1. Forced pairs and accepted events set bits in shared memory, which sorts them and removes repeats.
//   2. The block reserves room for its rows' edges; the place in memory is not determined, the content is. Rows that
//      do not fit are drawn again in the next round.
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
__device__ void ForForced(const DeviceCall& call, const DeviceProblem& problem, int32_t head, int32_t query, int lane,
                          const Visit& visit) {
  const DrawnPairs pairs(call, problem, head);
  if (!pairs.HasForced()) return;
  // Tokens of a forced pair are no further apart than their positions.
  const int32_t first = max(query - pairs.reach(), 0), last = min(query + pairs.reach(), problem.tokens - 1);
  for (int32_t key = first + lane; key <= last; key += kWarpSize) {
    if (pairs.Forced(query, key)) visit(key);
  }
}

// Shared by the threads of a block.
struct Reserved {
  uint32_t index;  // of the item
  RowItem item;
  uint32_t counts[kMostWarps];  // of the warps' rows
  unsigned long long base;      // word of the first row; at least pool_words: nothing fits any more
};

// Draws the rows of an item that the pass has not drawn before, as far as they fit. A row looks up its operands anew,
// since registers are few.
__device__ void DrawItem(const DeviceCall& call, OpenEvent (&queues)[kMostWarps][EventRow::kQueue],
                         Reserved& reserved) {
  const RowItem& item = reserved.item;
  if (threadIdx.x == 0) reserved.base = *static_cast<volatile unsigned long long*>(&call.state->used);
  __syncthreads();
#pragma unroll 1
  for (int first = 0; first < item.queries; first += static_cast<int>(blockDim.x) / kWarpSize) {
    const DeviceProblem& problem = call.problems[item.problem];
    const DeviceEventHead& head = call.event_heads[problem.event_head + item.head];
    const int warp = ThisThread() / kWarpSize, lane = ThisThread() % kWarpSize;
    const DrawnPairs pairs(call, problem, item.head);
    EventRow events(call, problem, head, pairs, queues[warp]);
    const bool multi = problem.law == Law::kPoissonMulti, aged = problem.cap >= 0;
    const uint32_t limit = aged ? call.caps[problem.cap].limit : kEventAgeOne;
    const int words = EventRowWords(problem.tokens);
    auto* own = reinterpret_cast<uint32_t*>(DynamicShared() + warp * EventRowBytes(problem.tokens, multi));
    const RowBits row = {own, multi ? own + words : nullptr, own + words * (multi ? 2 : 1)};
    const bool full = reserved.base >= static_cast<unsigned long long>(call.pool_words);
    const int32_t query = item.first_query + min(first + warp, item.queries - 1);
    const bool mine =
        first + warp < item.queries && PlaceOfRow(call, problem, item.head, query).mark < call.round.first;
    uint32_t count = 0;
    if (mine && !full) {
      for (int w = lane; w < words; w += kWarpSize) {
        row.words[w] = 0;
        if (multi) row.parallel[w] = 0;
      }
      __syncwarp(kWholeWarp);
      events.ForAccepted(query, limit, [&](int32_t key, uint32_t) {
        const uint32_t bit = 1u << (key % 32), old = atomicOr(row.words + key / 32, bit);
        if (multi && (old & bit) != 0) atomicOr(row.parallel + key / 32, bit);
      });
      __syncwarp(kWholeWarp);
      ForForced(call, problem, item.head, query, lane,
                [&](int32_t key) { atomicOr(row.words + key / 32, 1u << (key % 32)); });
      __syncwarp(kWholeWarp);
      count = CountBits(row, words, lane);
    }
    const uint32_t taken = aged ? 2 * count : count;
    if (lane == 0) reserved.counts[warp] = taken;
    __syncthreads();  // `base` has been read, and `counts` are written
    if (threadIdx.x == 0 && !full) {
      unsigned long long sum = 0;
      for (int w = 0; w < static_cast<int>(blockDim.x) / kWarpSize; ++w) sum += reserved.counts[w];
      reserved.base = sum == 0 ? 0 : atomicAdd(&call.state->used, sum);
    }
    __syncthreads();
    unsigned long long begin = reserved.base;
    for (int w = 0; w < warp; ++w) begin += reserved.counts[w];
    const bool fits = !full && (count == 0 || begin + taken <= static_cast<unsigned long long>(call.pool_words));
    __syncthreads();  // `counts` have been read
    if (!mine) continue;
    if (!fits) {
      if (lane == 0) {
        call.state->refused = 1;
        if (call.round.last) *call.full = 1;
      }
      continue;
    }
    if (lane == 0) {
      PlaceOfRow(call, problem, item.head, query) = {static_cast<uint32_t>(begin), count, count, call.round.mark};
    }
    uint32_t* keys = call.pool + begin;
    uint32_t* ages = keys + count;
    for (int w = lane; w < words; w += kWarpSize) {
      uint32_t bits = row.words[w];
      if (bits == 0) continue;
      uint32_t next = PlaceOfKey(row, w * 32);
      for (; bits != 0; bits &= bits - 1, ++next) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        const uint32_t flag = multi && (row.parallel[w] >> bit & 1u) != 0 ? kParallelFlag : 0;
        keys[next] = static_cast<uint32_t>(w * 32 + bit) | flag;
        if (aged) ages[next] = ~0u;
      }
    }
    __syncwarp(kWholeWarp);
    if (!aged) continue;
    events.ForAccepted(query, limit, [&](int32_t key, uint32_t age) { atomicMin(ages + PlaceOfKey(row, key), age); });
    __syncwarp(kWholeWarp);  // the row has been read
  }
}

__global__ void __launch_bounds__(kMostWarps* kWarpSize, 3) DrawLists(const __grid_constant__ DeviceCall call) {
  __shared__ OpenEvent queues[kMostWarps][EventRow::kQueue];
  __shared__ Reserved reserved;
  if (call.state->mark != call.round.mark) return;
  if (threadIdx.x == 0) reserved.index = blockIdx.x;
  __syncthreads();
#pragma unroll 1
  while (reserved.index < call.num_row_items) {
    if (threadIdx.x == 0) reserved.item = call.row_items[reserved.index];
    __syncthreads();
    const DeviceProblem& problem = call.problems[reserved.item.problem];
    if (DrawsProblem(call, reserved.item.problem) && IsEventHead(call, problem, reserved.item.head) &&
        !Dropped(problem)) {
      DrawItem(call, queues, reserved);
    }
    __syncthreads();
    if (threadIdx.x == 0) reserved.index += gridDim.x;
    __syncthreads();
  }
}

// The ages of one row of each item under a cap of first..first + count - 1 that keeps random edges, as counts of
// buckets [count, kAgeBuckets]. The row stands for all of its item.
__global__ void __launch_bounds__(kMostWarps* kWarpSize)
    CountSample(const __grid_constant__ DeviceCall call, int64_t first, int64_t count, BinCount* counts) {
  __shared__ OpenEvent queues[kMostWarps][EventRow::kQueue];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t index = int64_t{blockIdx.x} * kMostWarps + warp;
  if (index >= call.num_row_items) return;
  const RowItem item = call.row_items[index];
  const DeviceProblem& problem = call.problems[item.problem];
  if (problem.cap < first || problem.cap >= first + count || !IsEventHead(call, problem, item.head)) return;
  if (call.caps[problem.cap].cut.keep != CapRule::kRandom) return;
  const DrawnPairs pairs(call, problem, item.head);
  EventRow events(call, problem, call.event_heads[problem.event_head + item.head], pairs, queues[warp]);
  const uint32_t row = (static_cast<uint32_t>(index) * 0x9E3779B9u >> 16) % static_cast<uint32_t>(item.queries);
  BinCount* of_cap = counts + (problem.cap - first) * kAgeBuckets;
  events.ForAccepted(item.first_query + static_cast<int32_t>(row), kEventAgeOne, [&](int32_t, uint32_t age) {
    atomicAdd(of_cap + (age >> kAgeBucketShift), static_cast<BinCount>(item.queries));
  });
}

}  // namespace

cudaError_t SampleAges(cudaStream_t stream, const DeviceCall& call, int64_t first, int64_t count, BinCount* counts) {
  return Launch(stream, (call.num_row_items + kMostWarps - 1) / kMostWarps, kMostWarps * kWarpSize, 0,
                kLoaded<CountSample>, call, first, count, counts);
}

cudaError_t DrawEventHeads(cudaStream_t stream, const DeviceCall& call, int64_t shared_memory) {
  if (call.num_event_heads == 0) return cudaSuccess;
  const int64_t of_warp = EventRowBytes(call.most_tokens, call.multi);
  const int64_t goal = of_warp > kSharedGoal ? shared_memory - kSharedApart : kSharedGoal;
  const auto warps = static_cast<int>(std::clamp<int64_t>(goal / of_warp, 1, kMostWarps));
  return Launch(stream, BlocksFor(call, call.num_row_items), warps * kWarpSize, static_cast<size_t>(warps * of_warp),
                kLoaded<DrawLists>, call);
}

}  // namespace edgewise::cuda
