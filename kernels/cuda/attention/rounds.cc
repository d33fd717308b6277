#include "kernels/cuda/attention/rounds.h"

#include <algorithm>

#include "kernels/cuda/attention/lists.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kStateBytes = 64;  // of a RoundState, and what aligns what follows
static_assert(sizeof(RoundState) <= kStateBytes);

}  // namespace

PoolPlan PlanPool(std::span<const DeviceProblem> problems, int32_t num_heads, int64_t bytes) {
  int64_t all = 0, least = 0;
  for (const DeviceProblem& problem : problems) {
    if (problem.kind != PatternKind::kDrawn) continue;
    all += num_heads * std::max(BitsWords(problem, problem.tokens), MostListWords(problem));
    const int64_t row = problem.event_head < 0 ? 0 : problem.tokens * ListedWords(problem);
    least = std::max({least, row, BitsWords(problem, kTileQueries)});
  }
  PoolPlan plan;
  plan.words = std::min(all, std::max(bytes / 4, 2 * least));
  plan.rounds = all > 0 ? 1 : 0;
  if (all <= plan.words) return plan;
  // A round that refuses something has room for less than that. Bits come head by head, so that of two such rounds, one
  // after the other, the first's use and the second's first head are more than the pool.
  int64_t largest = least;
  for (const DeviceProblem& problem : problems) {
    if (problem.kind != PatternKind::kDrawn) continue;
    const int64_t bits = BitsWords(problem, problem.tokens);
    plan.splits |= bits > plan.words;
    if (bits <= plan.words) largest = std::max(largest, bits);
  }
  plan.rounds = all / std::max(plan.words - largest, plan.words / 2) + 2;
  return plan;
}

absl::Status DrawRounds::Start(Device& device, std::span<const DeviceProblem> problems, int64_t most_bytes,
                               const DeviceCall& call) {
  device_ = &device;
  call_ = call;
  int64_t places = 0;
  for (const DeviceProblem& problem : problems) {
    if (problem.event_head >= 0) places += int64_t{call.num_heads} * problem.tokens;
  }
  const int64_t bits = call.num_heads * std::ssize(problems) * static_cast<int64_t>(sizeof(HeadBits));
  const int64_t marked = kStateBytes + bits + places * static_cast<int64_t>(sizeof(RowPlace));
  plan_ = PlanPool(problems, call.num_heads, most_bytes - marked);
  if (plan_.rounds == 0) return absl::OkStatus();
  absl::StatusOr<DeviceArray> memory = DeviceArray::Create(device, marked + 4 * plan_.words);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  auto* at = memory_.as<unsigned char>();
  call_.state = reinterpret_cast<RoundState*>(at);
  call_.head_bits = reinterpret_cast<HeadBits*>(at + kStateBytes);
  call_.places = reinterpret_cast<RowPlace*>(at + kStateBytes + bits);
  call_.pool = reinterpret_cast<uint32_t*>(at + marked);
  call_.pool_words = plan_.words;
  return CudaStatus(cudaMemsetAsync(at, 0, static_cast<size_t>(marked), device.stream()), "marks of drawn rows");
}

cudaError_t DrawRounds::ForDrawn(Draws draws, bool again, const UseRound& use) {
  if (again && single()) {
    draws = Draws::kAll;  // nothing, or everything once more
    drawn_ = false;
  }
  return Pass(draws, -1, use, false, false);
}

cudaError_t DrawRounds::ForKept(const UseRound& use, int32_t problem) {
  const bool count = !counted_;
  counted_ = true;
  if (count && plan_.splits) {  // whether a head is dense is known once all of its edges are counted
    const cudaError_t error = Pass(Draws::kSplit, -1, {}, true, true);
    if (error != cudaSuccess) return error;
  }
  return Pass(problem < 0 ? Draws::kAll : Draws::kProblem, problem, use, true, count);
}

cudaError_t DrawRounds::Pass(Draws draws, int32_t problem, const UseRound& use, bool kept, bool count) {
  const int64_t rounds = std::max<int64_t>(plan_.rounds, 1);
  cudaStream_t stream = device_->stream();
  cudaError_t error = cudaSuccess;
  call_.round = {call_.round.mark + 1, call_.round.mark + 1, draws, problem, false};
  for (int64_t round = 0; round < rounds && error == cudaSuccess; ++round) {
    if (round > 0) {
      ++call_.round.mark;
      if (!kept && draws == Draws::kAll) call_.round.draws = Draws::kCounted;  // the others are for a pass to come
    }
    call_.round.last = round + 1 == rounds;
    if (plan_.rounds > 0) {
      const bool draw = !drawn_;
      if (draw) error = PlanRound(stream, call_);
      if (error == cudaSuccess && draw) error = DrawEventHeads(stream, call_, device_->shared_memory());
      const bool bits_again = kept && !kept_ && call_.num_caps > 0 && round == 0;
      if (error == cudaSuccess && (draw || bits_again)) error = DrawPairHeads(stream, call_, bits_again);
      if (error == cudaSuccess && kept && !kept_) error = KeepAndCount(stream, call_, count);
    }
    if (error == cudaSuccess && use) error = use(call_);
  }
  drawn_ = single();
  kept_ = kept && single();
  return error;
}

}  // namespace edgewise::cuda
