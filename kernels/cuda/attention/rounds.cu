// Begins a round (call.h): says what is in memory, and gives room to the heads with bits, in order, as they fit. Lists
// take what is left. A head that the pool cannot hold gets room for a run of its queries.
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/lists.cuh"
#include "kernels/cuda/attention/lists.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/sum_before.cuh"

namespace edgewise::cuda {
namespace {

// Whether the pass may have anything to draw.
__device__ bool DrawsAnything(const DeviceCall& call) {
  const Draws draws = call.round.draws;
  bool any = draws != Draws::kCounted && draws != Draws::kListed;
  const CapStage stage = draws == Draws::kCounted ? CapStage::kCount : CapStage::kList;
  for (int32_t cap = static_cast<int32_t>(threadIdx.x); !any && cap < call.num_caps; cap += kSumThreads) {
    any = call.caps[cap].stage == stage;
  }
  return __syncthreads_or(any ? 1 : 0) != 0;
}

__global__ void __launch_bounds__(kSumThreads) StartRound(const __grid_constant__ DeviceCall call) {
  __shared__ int64_t of_warp[kWarpSize];
  __shared__ uint32_t end_of_bits;
  RoundState& state = *call.state;
  const bool any = DrawsAnything(call), refused = state.refused != 0;
  const uint32_t whole = refused ? 0 : state.whole;
  if (threadIdx.x == 0) end_of_bits = 0;
  __syncthreads();
  if (!any || whole != 0 || (!IsFirstRound(call) && !refused)) {
    if (threadIdx.x == 0) state.mark = any && whole != 0 && IsFirstRound(call) ? whole : kNoMark;
    return;
  }
  const auto thread = static_cast<int64_t>(threadIdx.x), heads = int64_t{call.num_problems} * call.num_heads;
  int64_t used = 0;
  for (int64_t first = 0; first < heads && used <= call.pool_words; first += kSumThreads) {
    const int64_t index = first + thread;
    int64_t words = 0;
    HeadBits bits = {0, 0, 0, call.round.mark};
    bool cut = false;
    if (index < heads) {
      const auto of = static_cast<int32_t>(index / call.num_heads);
      const DeviceProblem& problem = call.problems[of];
      if (DrawsProblem(call, of) && !IsEventHead(call, problem, static_cast<int32_t>(index % call.num_heads))) {
        cut = BitsWords(problem, problem.tokens) > call.pool_words;
        const HeadBits& before = call.head_bits[index];
        bits.first = before.mark >= call.round.first ? before.end : 0;
        bits.end = problem.tokens;
        if (call.round.draws != Draws::kSplit || cut) words = BitsWords(problem, bits.end - bits.first);
      }
    }
    int64_t all = 0;
    const int64_t before = used + SumBefore(words, of_warp, &all);
    if (words > 0) {
      const int64_t left = call.pool_words - before;
      if (words > left) {
        const DeviceProblem& problem = call.problems[index / call.num_heads];
        const int64_t blocks = cut && left > 0 ? left / BitsWords(problem, kTileQueries) : 0;
        bits.end = bits.first + static_cast<int32_t>(blocks) * kTileQueries;
        words = blocks * BitsWords(problem, kTileQueries);
      }
      bits.begin = static_cast<uint32_t>(before);
      if (bits.end > bits.first) call.head_bits[index] = bits;
      if (words > 0) atomicMax(&end_of_bits, static_cast<uint32_t>(before + words));
    }
    used += all;
  }
  __syncthreads();
  if (thread != 0) return;
  state.used = end_of_bits;
  state.mark = call.round.draws == Draws::kSplit && used == 0 ? kNoMark : call.round.mark;
  state.bits = end_of_bits > 0 ? 1 : 0;
  state.refused = used > call.pool_words ? 1 : 0;
  state.whole = call.round.draws == Draws::kAll && IsFirstRound(call) ? call.round.mark : 0;
  if (state.refused != 0 && call.round.last) *call.full = 1;
}

}  // namespace

cudaError_t PlanRound(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, 1, kSumThreads, 0, kLoaded<StartRound>, call);
}

}  // namespace edgewise::cuda
