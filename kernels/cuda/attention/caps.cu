// Edge caps: which drawn edges an allowance keeps. The host learns nothing of them. Of each cap:
//   1. CountEdges counts all drawn edges by the first digit of their order (age_select.h), in 2^16 buckets.
//   2. FindBucket finds the bucket of the first edge that is dropped.
//   3. Where that bucket has more edges than a list has room for, both run once more, on the parts of the bucket; where
//      a cap keeps edges by their rate, of which many may be equal, up to four times more.
//   4. ListBucket lists the bucket's edges.
//   5. SettleCap finds the first dropped edge among them.
// TakeFromLedgers then charges what all caps kept, and KeepRows leaves the others out of the lists; bits are drawn
// again.
#include <algorithm>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/rank.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kLedgerThreads = 128;
constexpr uint32_t kMaxListed = 8192;  // edges of a cap; 2^44 pairs have fewer edges of one tick

enum class CapStage : int32_t {
  kCount,   // the first dropped edge is among more edges than a list has room for
  kList,    // it is among few enough
  kSettled  // nothing is dropped, or the selection has failed
};

// A cap's first dropped edge, as far as the passes so far have found it; zero at first.
struct alignas(16) CapState {
  unsigned long long forced;
  uint64_t rank;                // of the edge among the edges that begin with `digits`
  uint32_t digits[kMaxDigits];  // the first `known` digits of the edge
  int32_t known;
  CapStage stage;
  uint32_t listed;  // edges; may be more than the list has room for
};

__device__ bool BeginsWithDigits(const CapState& state, KeepRule keep, const AgedEdge& edge) {
  for (int digit = 0; digit < state.known; ++digit) {
    if (DigitOf(keep, edge, digit) != state.digits[digit]) return false;
  }
  return true;
}
// The scratch of the caps first..first+count-1.
struct CapScratch {
  int64_t first, count;
  CapState* states;  // [count]
  uint32_t* counts;  // [count, kAgeBuckets]

  __device__ CapState& StateOf(int64_t cap) const { return states[cap - first]; }
  __device__ uint32_t* CountsOf(int64_t cap) const { return counts + (cap - first) * kAgeBuckets; }
  // The list takes the place of the counts when these have been read.
  __device__ AgedEdge* ListOf(int64_t cap) const { return reinterpret_cast<AgedEdge*>(CountsOf(cap)); }
};
static_assert(kMaxListed * sizeof(AgedEdge) <= kAgeBuckets * sizeof(uint32_t));

// The problem draws, under one of these caps.
__device__ bool IsCapped(const DeviceProblem& problem, const CapScratch& scratch) {
  return problem.kind == PatternKind::kDrawn && problem.cap >= scratch.first &&
         problem.cap < scratch.first + scratch.count;
}

__device__ bool IsUnlimited(const DeviceCap& cap) { return cap.max_edges == ~uint64_t{0} && cap.ledger == nullptr; }

// Calls visit(query, key, age or null) for every edge of the item's rows that is not forced, by single threads; returns
// this thread's forced ones.
template <typename Visit>
__device__ unsigned ForDrawn(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                             const Visit& visit) {
  const DrawnPairs pairs(call, problem, item.head);
  unsigned forced = 0;
  for (int row = static_cast<int>(threadIdx.x) / kWarpSize; row < item.queries; row += kRowWarps) {
    const int32_t query = item.first_query + row;
    const RowEdges edges(call, problem, item, query);
    edges.ForEach([&](uint32_t flagged, int32_t place) {
      const auto key = static_cast<int32_t>(flagged & ~kParallelFlag);
      if (pairs.HasForced() && pairs.Forced(query, key)) {
        ++forced;
      } else {
        visit(query, key, place < 0 ? nullptr : edges.ages() + place);
      }
    });
  }
  return forced;
}

__global__ void __launch_bounds__(kRowThreads) CountEdges(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  const RowItem item = call.row_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (!IsCapped(problem, scratch) || IsUnlimited(call.caps[problem.cap])) return;
  CapState& state = scratch.StateOf(problem.cap);
  if (state.stage != CapStage::kCount) return;
  const bool first = state.known == 0;
  const KeepRule keep = call.caps[problem.cap].cut.keep;
  uint32_t* counts = scratch.CountsOf(problem.cap);
  unsigned forced = ForDrawn(call, problem, item, [&](int32_t query, int32_t key, const uint32_t* age) {
    const AgedEdge edge = PlaceOf(call, problem, item, keep, query, key, age);
    if (BeginsWithDigits(state, keep, edge)) atomicAdd(counts + DigitOf(keep, edge, state.known), 1u);
  });
  for (int step = kWarpSize / 2; step > 0; step /= 2) forced += __shfl_xor_sync(kWholeWarp, forced, step);
  if (threadIdx.x % kWarpSize == 0 && first && forced > 0) {
    atomicAdd(&state.forced, static_cast<unsigned long long>(forced));
  }
}

// One block a cap. The first run also says how many drawn edges may stay.
__global__ void __launch_bounds__(kSearchThreads)
    FindBucket(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  __shared__ Search search;
  const int64_t index = scratch.first + blockIdx.x;
  DeviceCap& cap = call.caps[index];
  CapState& state = scratch.StateOf(index);
  if (state.stage != CapStage::kCount) return;
  const int32_t digit = state.known;
  const unsigned long long forced = state.forced;
  uint64_t rank = state.rank;
  uint32_t* counts = scratch.CountsOf(index);
  const uint64_t drawn = Total(counts, search);
  if (digit == 0) {
    rank = AllowedDrawn(cap.max_edges, cap.ledger, cap.share, cap.undrawn + forced);
    if (threadIdx.x == 0) {
      cap.forced = forced;
      cap.drawn = drawn;
      cap.allowed = rank;
      if (drawn <= rank) state.stage = CapStage::kSettled;
    }
    if (drawn <= rank) return;
  }
  Find(counts, rank, search);
  const int32_t known = digit + 1;
  const bool few = search.count <= kMaxListed, divide = !few && known < DigitsOf(cap.cut.keep);
  if (threadIdx.x == 0) {
    state.rank = rank - search.before;
    state.digits[digit] = search.bin;
    state.known = known;
    state.stage = few ? CapStage::kList : divide ? CapStage::kCount : CapStage::kSettled;
  }
  for (uint32_t i = threadIdx.x; divide && i < kAgeBuckets; i += kSearchThreads) counts[i] = 0;
}

__global__ void __launch_bounds__(kRowThreads) ListBucket(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  const RowItem item = call.row_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (!IsCapped(problem, scratch)) return;
  CapState& state = scratch.StateOf(problem.cap);
  if (state.stage != CapStage::kList) return;
  AgedEdge* list = scratch.ListOf(problem.cap);
  const KeepRule keep = call.caps[problem.cap].cut.keep;
  ForDrawn(call, problem, item, [&](int32_t query, int32_t key, const uint32_t* age) {
    const AgedEdge edge = PlaceOf(call, problem, item, keep, query, key, age);
    if (!BeginsWithDigits(state, keep, edge)) return;
    const uint32_t place = atomicAdd(&state.listed, 1u);
    if (place < kMaxListed) list[place] = edge;
  });
}

// One block a cap: where the cap cuts.
__global__ void __launch_bounds__(kSelectThreads)
    SettleCap(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  __shared__ Digits digits;
  const int64_t index = scratch.first + blockIdx.x;
  DeviceCap& cap = call.caps[index];
  const CapState state = scratch.StateOf(index);
  const bool drops = cap.drawn > cap.allowed;
  AgedEdge first_dropped = {~uint64_t{0}, ~uint64_t{0}};
  const bool failed =
      drops && (state.stage != CapStage::kList || state.listed > kMaxListed || state.rank >= state.listed);
  if (drops && !failed) {
    first_dropped = Select(scratch.ListOf(index), state.listed, static_cast<uint32_t>(state.rank), digits);
  }
  if (threadIdx.x != 0) return;
  if (failed) first_dropped = {0, 0};  // nothing is kept beyond the allowance
  cap.cut.age_bits = first_dropped.age_bits;
  cap.cut.order = first_dropped.order;
  cap.tau = drops && cap.cut.keep == KeepRule::kRandom ? AgeOfBits(first_dropped.age_bits) : 1.0;
  cap.capped = drops ? 1 : 0;
  cap.failed = failed ? 1 : 0;
}

// One thread a cap: takes the edges used off the cap's ledger. All allowances have been read by now.
__global__ void __launch_bounds__(kLedgerThreads) TakeFromLedgers(const __grid_constant__ DeviceCall call) {
  const int64_t index = int64_t{blockIdx.x} * kLedgerThreads + threadIdx.x;
  if (index >= call.num_caps) return;
  const DeviceCap& cap = call.caps[index];
  if (cap.ledger == nullptr) return;
  const uint64_t used = cap.undrawn + cap.forced + (cap.drawn > cap.allowed ? cap.allowed : cap.drawn);
  atomicAdd(reinterpret_cast<unsigned long long*>(cap.ledger), 0ull - used);
}

// Leaves the edges behind the cut out of the lists, and adds what is left to what heads report.
__global__ void __launch_bounds__(kRowThreads) KeepRows(const __grid_constant__ DeviceCall call, bool count) {
  __shared__ unsigned long long edges_here;
  __shared__ unsigned isolated_here;
  const RowItem item = call.row_items[blockIdx.x];
  if (item.slot < 0) return;
  const DeviceProblem& problem = call.problems[item.problem];
  if (Dropped(problem)) return;
  if (threadIdx.x == 0) edges_here = isolated_here = 0;
  __syncthreads();
  const EdgeCut cut = CutOf(call, problem);
  const bool drops = cut.age_bits != ~uint64_t{0} && IsEventHead(call, problem, item.head);
  const DrawnPairs pairs(call, problem, item.head);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int row = static_cast<int>(threadIdx.x) / kWarpSize; row < item.queries; row += kRowWarps) {
    const int32_t query = item.first_query + row;
    const RowEdges edges(call, problem, item, query);
    int32_t kept = 0;
    if (drops) {
      const EdgeSlot& slot = call.slots[item.slot];
      const EdgeList list = ListOf(call, problem, slot);
      uint32_t* keys = list.keys + list.begin[query - slot.first_query];
      for (int32_t first = 0; first < edges.count(); first += kWarpSize) {
        const int32_t place = first + lane;
        const uint32_t flagged = place < edges.count() ? keys[place] : 0;
        const auto key = static_cast<int32_t>(flagged & ~kParallelFlag);
        const bool keep =
            place < edges.count() && ((pairs.HasForced() && pairs.Forced(query, key)) ||
                                      IsBefore(PlaceOf(call, problem, item, cut.keep, query, key, edges.ages() + place),
                                               {cut.age_bits, cut.order}));
        const uint32_t them = __ballot_sync(kWholeWarp, keep);
        if (keep) keys[kept + __popc(them & ((1u << lane) - 1))] = flagged;
        kept += __popc(them);
        __syncwarp(kWholeWarp);
      }
      if (lane == 0) list.count[query - slot.first_query] = static_cast<uint32_t>(kept);
    } else {
      kept = edges.Count();
    }
    if (lane != 0) continue;
    if (kept == 0) atomicAdd(&isolated_here, 1u);
    atomicAdd(&edges_here, static_cast<unsigned long long>(kept));
  }
  __syncthreads();
  if (threadIdx.x != 0 || !count) return;
  DeviceHeadCounts& counts = call.counts[problem.count + item.head];
  if (edges_here > 0) atomicAdd(&counts.edges, edges_here);
  if (isolated_here > 0) atomicAdd(&counts.isolated, static_cast<unsigned long long>(isolated_here));
}

}  // namespace

int64_t CapScratchBytes(int64_t num_caps) {
  return std::min(num_caps, kMaxCapsAtOnce) * static_cast<int64_t>(sizeof(CapState) + kAgeBuckets * sizeof(uint32_t));
}

cudaError_t SelectKept(cudaStream_t stream, const DeviceCall& call, bool by_rate, void* scratch,
                       const ForParts& for_parts) {
  cudaError_t error = cudaSuccess;
  for (int64_t first = 0; first < call.num_caps && error == cudaSuccess; first += kMaxCapsAtOnce) {
    const int64_t count = std::min(call.num_caps - first, kMaxCapsAtOnce);
    auto* states = static_cast<CapState*>(scratch);
    const CapScratch work = {first, count, states, reinterpret_cast<uint32_t*>(states + count)};
    error = cudaMemsetAsync(scratch, 0, static_cast<size_t>(CapScratchBytes(count)), stream);
    const auto look = [&](void (*kernel)(DeviceCall, CapScratch)) {
      if (error != cudaSuccess) return;
      error = for_parts([&](const DeviceCall& part) {
        return Launch(stream, part.num_row_items, kRowThreads, 0, kernel, part, work);
      });
    };
    const auto search = [&](int threads, void (*kernel)(DeviceCall, CapScratch)) {
      if (error == cudaSuccess) error = Launch(stream, count, threads, 0, kernel, call, work);
    };
    const int digits = DigitsOf(by_rate ? KeepRule::kProbable : KeepRule::kRandom);
    for (int digit = 0; digit < digits; ++digit) {  // of caps that are past counting, launches return at once
      look(kLoaded<CountEdges>);
      search(kSearchThreads, kLoaded<FindBucket>);
    }
    look(kLoaded<ListBucket>);
    search(kSelectThreads, kLoaded<SettleCap>);
  }
  const int64_t blocks = (call.num_caps + kLedgerThreads - 1) / kLedgerThreads;
  if (error != cudaSuccess || blocks == 0) return error;
  return Launch(stream, blocks, kLedgerThreads, 0, kLoaded<TakeFromLedgers>, call);
}

cudaError_t KeepAndCount(cudaStream_t stream, const DeviceCall& call, bool count) {
  return Launch(stream, call.num_row_items, kRowThreads, 0, kLoaded<KeepRows>, call, count);
}

}  // namespace edgewise::cuda
