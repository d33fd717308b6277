// Edge caps: which drawn edges an allowance keeps. The host learns nothing of them. For each cap:
//   1. A sample of the ages of events says up to which age edges are drawn (FindLimit): more than may stay, as a rule.
//   2. CountEdges counts all drawn edges by the first digit of their order (age_select.h), in 2^16 buckets.
//   3. FindBucket finds the bucket of the first edge that is dropped. Where the edges are too few, all are drawn and
//      counted once more.
//   4. Where that bucket has more edges than a list has room for, both run once more, on the parts of the bucket; where
//      a cap keeps edges by their rate, of which many may be equal, up to four times more.
//   5. ListBucket lists the bucket's edges.
//   6. SettleCap finds the first dropped edge among them.
// TakeFromLedgers then charges the edges that all caps kept, and KeepRows leaves the others out of the lists; bits are
// drawn again.
#include <algorithm>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/lists.h"
#include "kernels/cuda/attention/rank.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kLedgerThreads = 128;
constexpr double kLimitDeviations = 6.0;  // rows differ from each other, so more than those of a count
constexpr uint32_t kMaxListed = 8192;     // edges of a cap; 2^44 pairs have fewer edges of one tick

// A cap's first dropped edge, as far as the passes so far have found it; zero at first.
struct alignas(16) CapState {
  unsigned long long forced;
  uint64_t rank;                // of the edge among the edges that begin with `digits`
  uint32_t digits[kMaxDigits];  // the first `known` digits of the edge
  int32_t known;
  uint32_t listed;  // edges; may be more than the list has room for
};

__device__ bool BeginsWithDigits(const CapState& state, CapRule keep, const AgedEdge& edge) {
  for (int digit = 0; digit < state.known; ++digit) {
    if (DigitOf(keep, edge, digit) != state.digits[digit]) return false;
  }
  return true;
}
// The scratch of the caps first..first+count-1.
struct CapScratch {
  int64_t first, count;
  CapState* states;  // [count]
  BinCount* counts;  // [count, kAgeBuckets]

  __device__ CapState& StateOf(int64_t cap) const { return states[cap - first]; }
  __device__ BinCount* CountsOf(int64_t cap) const { return counts + (cap - first) * kAgeBuckets; }
  // The list takes the place of the counts when these have been read.
  __device__ AgedEdge* ListOf(int64_t cap) const { return reinterpret_cast<AgedEdge*>(CountsOf(cap)); }
};
static_assert(kMaxListed * sizeof(AgedEdge) <= kAgeBuckets * sizeof(BinCount));

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

// One block a cap: the age up to which a quarter more edges than may stay, and what a sample of one row in 32 may
// be off by, have been drawn. Clears the counts.
__global__ void __launch_bounds__(kSearchThreads)
    FindLimit(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  __shared__ Search search;
  const int64_t index = scratch.first + blockIdx.x;
  DeviceCap& cap = call.caps[index];
  BinCount* counts = scratch.CountsOf(index);
  const auto drawn = static_cast<double>(Total(counts, search));
  const auto allowed = static_cast<double>(AllowedDrawn(cap.max_edges, cap.ledger, cap.share, cap.undrawn));
  const double want = 1.25 * allowed + kLimitDeviations * sqrt(kRowsPerItem * (allowed + kRowsPerItem));
  if (want < drawn) {  // neither unlimited nor by rate
    Find(counts, static_cast<uint64_t>(want), search);
    if (threadIdx.x == 0) cap.limit = (search.bin + 1) << kAgeBucketShift;
  }
  for (uint32_t i = threadIdx.x; i < kAgeBuckets; i += kSearchThreads) counts[i] = 0;
}

__global__ void __launch_bounds__(kRowThreads) CountEdges(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  ForDrawnItems(call, [&](const RowItem& item, const DeviceProblem& problem) {
    if (!IsCapped(problem, scratch) || IsUnlimited(call.caps[problem.cap])) return;
    const DeviceCap& cap = call.caps[problem.cap];
    if (cap.stage != CapStage::kCount) return;
    CapState& state = scratch.StateOf(problem.cap);
    const bool first = state.known == 0;
    const CapRule keep = cap.cut.keep;
    const uint32_t end = first && keep == CapRule::kRandom ? cap.limit >> kAgeBucketShift : ~0u;
    BinCount* counts = scratch.CountsOf(problem.cap);
    uint32_t last = 0;
    BinCount equal = 0;  // neighbouring edges of one digit are added at once: the rates of many may be equal
    unsigned forced = ForDrawn(call, problem, item, [&](int32_t query, int32_t key, const uint32_t* age) {
      const AgedEdge edge = PlaceOf(call, problem, item, keep, query, key, age);
      if (!BeginsWithDigits(state, keep, edge)) return;
      const uint32_t digit = DigitOf(keep, edge, state.known);
      if (digit >= end) return;
      if (digit != last && equal > 0) {
        atomicAdd(counts + last, equal);
        equal = 0;
      }
      last = digit;
      ++equal;
    });
    if (equal > 0) atomicAdd(counts + last, equal);
    for (int step = kWarpSize / 2; step > 0; step /= 2) forced += __shfl_xor_sync(kWholeWarp, forced, step);
    if (threadIdx.x % kWarpSize == 0 && first && forced > 0) {
      atomicAdd(&state.forced, static_cast<unsigned long long>(forced));
    }
  });
}

// One block a cap. The first run also says how many drawn edges may stay.
__global__ void __launch_bounds__(kSearchThreads)
    FindBucket(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  __shared__ Search search;
  const int64_t index = scratch.first + blockIdx.x;
  DeviceCap& cap = call.caps[index];
  CapState& state = scratch.StateOf(index);
  if (cap.stage != CapStage::kCount) return;
  const int32_t digit = state.known;
  const unsigned long long forced = state.forced;
  uint64_t rank = state.rank;
  BinCount* counts = scratch.CountsOf(index);
  const uint64_t drawn = Total(counts, search);
  const auto clear = [&] {
    for (uint32_t i = threadIdx.x; i < kAgeBuckets; i += kSearchThreads) counts[i] = 0;
  };
  if (digit == 0) {
    rank = AllowedDrawn(cap.max_edges, cap.ledger, cap.share, cap.undrawn + forced);
    const bool raise = drawn <= rank && cap.limit < kEventAgeOne;
    __syncthreads();  // the limit has been read
    if (threadIdx.x == 0) {
      cap.forced = forced;
      cap.drawn = drawn;
      cap.allowed = rank;
      if (raise) {
        cap.limit = kEventAgeOne;
        state.forced = 0;
        call.state->refused = 1;
      } else if (drawn <= rank) {
        cap.stage = CapStage::kSettled;
      }
    }
    if (raise) clear();
    if (drawn <= rank) return;
  }
  Find(counts, rank, search);
  const int32_t known = digit + 1;
  const bool few = search.count <= kMaxListed, divide = !few && known < DigitsOf(cap.cut.keep);
  if (threadIdx.x == 0) {
    state.rank = rank - search.before;
    state.digits[digit] = search.bin;
    state.known = known;
    cap.stage = few ? CapStage::kList : divide ? CapStage::kCount : CapStage::kSettled;
  }
  if (divide) clear();
}

__global__ void __launch_bounds__(kRowThreads) ListBucket(const __grid_constant__ DeviceCall call, CapScratch scratch) {
  ForDrawnItems(call, [&](const RowItem& item, const DeviceProblem& problem) {
    if (!IsCapped(problem, scratch) || call.caps[problem.cap].stage != CapStage::kList) return;
    CapState& state = scratch.StateOf(problem.cap);
    AgedEdge* list = scratch.ListOf(problem.cap);
    const CapRule keep = call.caps[problem.cap].cut.keep;
    ForDrawn(call, problem, item, [&](int32_t query, int32_t key, const uint32_t* age) {
      const AgedEdge edge = PlaceOf(call, problem, item, keep, query, key, age);
      if (!BeginsWithDigits(state, keep, edge)) return;
      const uint32_t place = atomicAdd(&state.listed, 1u);
      if (place < kMaxListed) list[place] = edge;
    });
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
      drops && (cap.stage != CapStage::kList || state.listed > kMaxListed || state.rank >= state.listed);
  if (drops && !failed) {
    first_dropped = Select(scratch.ListOf(index), state.listed, static_cast<uint32_t>(state.rank), digits);
  }
  if (threadIdx.x != 0) return;
  cap.stage = CapStage::kSettled;
  if (failed) first_dropped = {0, 0};  // nothing is kept beyond the allowance
  cap.cut.age_bits = first_dropped.age_bits;
  cap.cut.order = first_dropped.order;
  cap.tau = drops && cap.cut.keep == CapRule::kRandom ? AgeOfBits(first_dropped.age_bits) : 1.0;
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

// Leaves the edges behind the cut out of the lists, ages too, so that it may run again; and adds what is left to what
// heads report.
__global__ void __launch_bounds__(kRowThreads) KeepRows(const __grid_constant__ DeviceCall call, bool count) {
  ForDrawnItems(call, [&](const RowItem& item, const DeviceProblem& problem) {
    if (Dropped(problem)) return;
    const bool by_events = IsEventHead(call, problem, item.head);
    const bool split = !by_events && BitsWords(problem, problem.tokens) > call.pool_words;  // counted before the others
    const bool counts = count && split == (call.round.draws == Draws::kSplit);
    const EdgeCut cut = CutOf(call, problem);
    const bool drops = cut.age_bits != ~uint64_t{0} && by_events;
    if (!drops && !counts) return;
    unsigned long long of_warp = 0, isolated = 0;
    const DrawnPairs pairs(call, problem, item.head);
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    for (int row = static_cast<int>(threadIdx.x) / kWarpSize; row < item.queries; row += kRowWarps) {
      const int32_t query = item.first_query + row;
      const RowEdges edges(call, problem, item, query);
      if (!edges.here()) continue;
      int32_t kept = 0;
      if (drops) {
        RowPlace& place = PlaceOfRow(call, problem, item.head, query);
        uint32_t* keys = call.pool + place.begin;
        uint32_t* ages = keys + place.drawn;
        for (int32_t first = 0; first < edges.count(); first += kWarpSize) {
          const int32_t e = first + lane;
          const bool any = e < edges.count();
          const uint32_t flagged = any ? keys[e] : 0, age = any ? ages[e] : 0;
          const auto key = static_cast<int32_t>(flagged & ~kParallelFlag);
          const bool keep = any && ((pairs.HasForced() && pairs.Forced(query, key)) ||
                                    IsBefore(PlaceOf(call, problem, item, cut.keep, query, key, ages + e),
                                             {cut.age_bits, cut.order}));
          const uint32_t them = __ballot_sync(kWholeWarp, keep);
          const int32_t to = kept + __popc(them & ((1u << lane) - 1));
          __syncwarp(kWholeWarp);  // all have read: a ballot does not order memory
          if (keep) keys[to] = flagged;
          if (keep) ages[to] = age;
          kept += __popc(them);
          __syncwarp(kWholeWarp);
        }
        if (lane == 0) place.count = static_cast<uint32_t>(kept);
      } else {
        kept = edges.Count();
      }
      of_warp += static_cast<unsigned long long>(kept);
      isolated += kept == 0 ? 1 : 0;
    }
    if (lane != 0 || !counts) return;
    DeviceHeadCounts& of_head = call.counts[problem.count + item.head];
    if (of_warp > 0) atomicAdd(&of_head.edges, of_warp);
    if (isolated > 0) atomicAdd(&of_head.isolated, isolated);
  });
}

}  // namespace

int64_t CapScratchBytes(int64_t num_caps) {
  return std::min(num_caps, kMaxCapsAtOnce) * static_cast<int64_t>(sizeof(CapState) + kAgeBuckets * sizeof(BinCount));
}

cudaError_t SelectKept(cudaStream_t stream, const DeviceCall& call, bool by_rate, void* scratch,
                       const DrawPass& for_drawn) {
  cudaError_t error = cudaSuccess;
  const bool samples = call.num_event_heads > 0;
  const int digits = DigitsOf(by_rate ? CapRule::kProbable : CapRule::kRandom);
  for (int64_t first = 0; first < call.num_caps && error == cudaSuccess; first += kMaxCapsAtOnce) {
    const int64_t count = std::min(call.num_caps - first, kMaxCapsAtOnce);
    auto* states = static_cast<CapState*>(scratch);
    const CapScratch work = {first, count, states, reinterpret_cast<BinCount*>(states + count)};
    error = cudaMemsetAsync(scratch, 0, static_cast<size_t>(CapScratchBytes(count)), stream);
    const auto search = [&](int threads, void (*kernel)(DeviceCall, CapScratch)) {
      if (error == cudaSuccess) error = Launch(stream, count, threads, 0, kernel, call, work);
    };
    const auto look = [&](Draws draws, bool again, void (*kernel)(DeviceCall, CapScratch)) {
      if (error != cudaSuccess) return;
      error = for_drawn(draws, again, [&](const DeviceCall& round) {
        return Launch(stream, BlocksFor(round, round.num_row_items), kRowThreads, 0, kernel, round, work);
      });
    };
    if (samples && error == cudaSuccess) error = SampleAges(stream, call, first, count, work.counts);
    if (samples) search(kSearchThreads, kLoaded<FindLimit>);
    for (int pass = 0; pass < digits + (samples ? 1 : 0); ++pass) {  // of caps past counting, launches return at once
      look(pass == 0 ? Draws::kAll : Draws::kCounted, samples && pass == 1, kLoaded<CountEdges>);
      search(kSearchThreads, kLoaded<FindBucket>);
    }
    look(Draws::kListed, false, kLoaded<ListBucket>);
    search(kSelectThreads, kLoaded<SettleCap>);
  }
  const int64_t blocks = (call.num_caps + kLedgerThreads - 1) / kLedgerThreads;
  if (error != cudaSuccess || blocks == 0) return error;
  return Launch(stream, blocks, kLedgerThreads, 0, kLoaded<TakeFromLedgers>, call);
}

cudaError_t KeepAndCount(cudaStream_t stream, const DeviceCall& call, bool count) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kRowThreads, 0, kLoaded<KeepRows>, call, count);
}

}  // namespace edgewise::cuda
