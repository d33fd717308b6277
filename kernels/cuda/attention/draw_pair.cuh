// The draw of one pair of tokens of one head, as kernels/draw/draw.h defines it.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_PAIR_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_PAIR_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// threadIdx.x, hidden from the compiler, which would otherwise compute addresses ahead of a loop that has no registers
// to keep them in. By whole warps.
__device__ inline int ThisThread() {
  return __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x) % kWarpSize);
}

// A word or byte of a block by an index that is not constant, without going through memory.
__device__ inline uint32_t WordOf(const PhiloxBlock& block, uint32_t index) {
  const uint32_t even = index & 2u ? block.word[2] : block.word[0], odd = index & 2u ? block.word[3] : block.word[1];
  return index & 1u ? odd : even;
}
__device__ inline uint32_t ByteOf(const PhiloxBlock& block, uint32_t index) {
  return WordOf(block, index >> 2) >> (8 * (index & 3u)) & 0xFFu;
}

static_assert(kDotLanes == 16);

// MembershipDot with 16-byte loads: the same operations in the same order. x and y are 16-byte aligned.
__device__ inline float RowDot(const float* x, const float* y, int rank) {
  float lane[kDotLanes] = {};
#pragma unroll 1
  for (int t = 0; t < rank; t += kDotLanes) {
    const float4* a = reinterpret_cast<const float4*>(x + t);
    const float4* b = reinterpret_cast<const float4*>(y + t);
#pragma unroll
    for (int c = 0; c < kDotLanes / 4; ++c) {
      const float4 left = __ldg(a + c), right = __ldg(b + c);
      lane[4 * c] = fmaf(left.x, right.x, lane[4 * c]);
      lane[4 * c + 1] = fmaf(left.y, right.y, lane[4 * c + 1]);
      lane[4 * c + 2] = fmaf(left.z, right.z, lane[4 * c + 2]);
      lane[4 * c + 3] = fmaf(left.w, right.w, lane[4 * c + 3]);
    }
  }
  // A loop over steps would not be unrolled, and `lane` not be in registers.
#pragma unroll
  for (int l = 0; l < 8; ++l) lane[l] += lane[l + 8];
#pragma unroll
  for (int l = 0; l < 4; ++l) lane[l] += lane[l + 4];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

// 1 - exp(-p) for p in [0, 1] to 1e-6 of itself.
__device__ inline float AboutOneMinusExp(float p) {
  float sum = 1.0f;
#pragma unroll
  for (int term = 11; term >= 2; --term) sum = 1.0f - p * (1.0f / static_cast<float>(term)) * sum;
  return p * sum;
}

// Steps that few pairs need, out of line so that they take no registers from those that all pairs need.
__device__ __noinline__ inline bool IsBelowThreshold(Law law, uint64_t uniform, float rate) {
  return uniform < EdgeThreshold(EdgeProbability(law, rate));
}
__device__ __noinline__ inline uint64_t EdgeAgeBits(Law law, uint64_t uniform, float rate) {
  return AgeBits(EdgeAge(law, uniform, rate));
}
__device__ __noinline__ inline int MultiplicityAt(uint64_t uniform, double rate) {
  return EdgeMultiplicity(uniform, rate);
}

// EdgeMultiplicity(uniform, rate) > 1. P(Poisson >= 2) is at most rate^2 / 2, which settles nearly all pairs.
__device__ inline bool HasParallel(uint64_t uniform, double rate) {
  if (static_cast<double>(uniform) > rate * rate * (0.50001 * kPairUniformScale)) return false;
  return MultiplicityAt(uniform, rate) > 1;
}

// The pairs of one head of a drawn problem, by packed query and key.
class DrawnPairs {
 public:
  __device__ DrawnPairs(const DeviceCall& call, const DeviceProblem& problem, int32_t head)
      : query_bound(call.query_bound + head * call.membership_rows + problem.first_row),
        key_bound(call.key_bound + head * call.membership_rows + problem.first_row),
        problem_(problem),
        x_(call.x + (head * call.membership_rows + problem.first_row) * call.rank),
        y_(call.y + (head * call.membership_rows + problem.first_row) * call.rank),
        rank_(call.rank),
        head_(static_cast<uint32_t>(head)) {}

  __device__ bool HasForced() const { return problem_.self_loops || problem_.local_window > 0; }
  // The most positions between the tokens of a forced pair.
  __device__ int32_t reach() const { return problem_.local_window > 0 ? problem_.local_window / 2 : 0; }
  __device__ bool Forced(int32_t query, int32_t key) const {
    if (problem_.self_loops && query == key) return true;
    if (problem_.local_window <= 0) return false;
    const int32_t distance = PositionOf(problem_, query) - PositionOf(problem_, key);
    return (distance < 0 ? -distance : distance) <= reach();
  }

  // The memberships of a query or key [rank].
  __device__ const float* Query(int32_t query) const { return x_ + static_cast<int64_t>(query) * rank_; }
  __device__ const float* Key(int32_t key) const { return y_ + static_cast<int64_t>(key) * rank_; }
  __device__ float Rate(int32_t query, int32_t key) const {
    return EdgeRate(RowDot(Query(query), Key(key), rank_), problem_.exploration);
  }

  // The block of high bytes that HighByteAddress calls `counter`.
  __device__ PhiloxBlock HighBytes(int32_t query, uint32_t counter) const {
    return Philox4x32(problem_.key.seed, {{counter, Position(query), CounterWord(problem_.key, head_, kStreamBytes),
                                           problem_.key.sample}});
  }
  __device__ uint32_t HighByte(int32_t query, int32_t key) const {
    const ByteAddress address = HighByteAddress(Position(key));
    return ByteOf(HighBytes(query, address.counter), address.index);
  }
  // The low word of PairUniform.
  __device__ uint32_t LowWord(int32_t query, int32_t key) const {
    const uint32_t position = Position(key);
    return WordOf(Philox4x32(problem_.key.seed, {{position >> 2, Position(query),
                                                  CounterWord(problem_.key, head_, kStreamLow), problem_.key.sample}}),
                  position & 3u);
  }
  // A block of random numbers of the query's events.
  __device__ PhiloxBlock EventWords(int32_t query, uint32_t stream, uint32_t counter) const {
    return Philox4x32(problem_.key.seed,
                      {{counter, Position(query), CounterWord(problem_.key, head_, stream), problem_.key.sample}});
  }
  __device__ uint64_t Uniform(int32_t query, int32_t key) const {
    return static_cast<uint64_t>(HighByte(query, key)) << 32 | LowWord(query, key);
  }

  // PairUniform < EdgeThreshold, by the high byte where that settles it. `uniform` is set if it does not, or if it is
  // wanted and the pair is an edge.
  __device__ bool IsEdge(int32_t query, int32_t key, uint32_t byte, float rate, bool wanted, uint64_t* uniform) const {
    const float scaled = 256.0f * rate;
    const uint32_t whole = static_cast<uint32_t>(scaled);
    if (byte > whole) return false;  // no law has a probability above the rate
    bool settled = byte < whole;
    if (problem_.law != Law::kBernoulli) {
      const float about = 256.0f * AboutOneMinusExp(rate);
      if (static_cast<float>(byte) > about * 1.00001f) return false;
      settled = static_cast<float>(byte + 1) < about * 0.99999f;
    }
    if (settled && !wanted) return true;
    *uniform = static_cast<uint64_t>(byte) << 32 | LowWord(query, key);
    return settled || IsBelowThreshold(problem_.law, *uniform, rate);
  }

  const float* const query_bound;  // of the sequence's tokens
  const float* const key_bound;

 private:
  __device__ uint32_t Position(int32_t token) const { return static_cast<uint32_t>(PositionOf(problem_, token)); }

  const DeviceProblem& problem_;
  const float* const x_;  // of the sequence's first token
  const float* const y_;
  const int32_t rank_;
  const uint32_t head_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_PAIR_CUH_
