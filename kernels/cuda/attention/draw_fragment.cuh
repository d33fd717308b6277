// The edges between 16 queries and 64 keys, drawn by one warp with tensor cores.
//
// With g = lane / 4 and t = lane % 4 a thread has queries g and g + 8 and, of every 8 keys, keys 2t and 2t + 1. Bit
// 16 * half + 2 * n + b of the thread's word is query g + 8 * half and key 8 * n + 2 * t + b. The pairs of one query
// take the bytes of one block of random numbers (HighByteAddress, draw.h).
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_FRAGMENT_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_FRAGMENT_CUH_

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/draw_pair.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"

namespace edgewise::cuda {

inline constexpr int kFragmentTiles = kTileKeys / 8;  // of 8 keys each
static_assert(kTileKeys == 64);

// `keys`: bit j is key j of the tile. Returns the part that a thread has of them, for one query.
__device__ inline uint32_t FragmentOf(uint64_t keys, int thread) {
  uint64_t word = keys >> (2 * thread) & 0x0303030303030303u;
  word = (word | word >> 6) & 0x000F000F000F000Fu;
  word = (word | word >> 12) & 0x000000FF000000FFu;
  return static_cast<uint32_t>((word | word >> 24) & 0xFFFFu);
}
// The keys of a query, from the parts of the query's four threads; by whole warps.
__device__ inline uint64_t KeysOf(uint32_t part, int thread) {
  uint64_t word = (part | static_cast<uint64_t>(part) << 24) & 0x000000FF000000FFu;
  word = (word | word << 12) & 0x000F000F000F000Fu;
  word = ((word | word << 6) & 0x0303030303030303u) << (2 * thread);
  word |= __shfl_xor_sync(kWholeWarp, word, 1);
  return word | __shfl_xor_sync(kWholeWarp, word, 2);
}
// Minus the middle of the values of u that begin with a byte of `word`, in units of that byte: the byte becomes the
// last bits of 2^23.
__device__ inline float BelowByte(uint32_t word, int byte) {
  return 8388607.5f - __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + static_cast<unsigned>(byte)));
}
// Keys first..last of a tile; either may lie outside.
__device__ inline uint64_t KeyRange(int32_t first, int32_t last) {
  if (last < 0 || first >= kTileKeys || last < first) return 0;
  const uint64_t from = ~uint64_t{0} << (first < 0 ? 0 : first);
  return last >= kTileKeys - 1 ? from : from & ~(~uint64_t{0} << (last + 1));
}

// Up to 16 neighbouring queries of one head.
struct FragmentRows {
  int32_t problem, head;
  int32_t first_query;
  int rows;
};

// Whether a pair that is not forced is an edge and kept, by the definition. Out of line: few pairs need it.
__device__ __noinline__ inline bool IsKept(const DeviceCall& call, int32_t problem, int32_t head, int32_t query,
                                           int32_t key) {
  const DeviceProblem& of = call.problems[problem];
  const DrawnPairs pairs(call, of, head);
  const EdgeCut cut = of.cap >= 0 ? call.caps[of.cap].cut : EdgeCut{~uint64_t{0}, 0, CapRule::kRandom};
  const bool all = cut.age_bits == ~uint64_t{0};
  const float rate = pairs.Rate(query, key);
  uint64_t uniform = 0;
  if (!pairs.IsEdge(query, key, pairs.HighByte(query, key), rate, !all, &uniform)) return false;
  if (all) return true;
  const uint64_t order =
      EdgeOrder(static_cast<uint32_t>(problem), static_cast<uint32_t>(call.num_heads), static_cast<uint32_t>(head),
                static_cast<uint32_t>(query), static_cast<uint32_t>(key));
  const uint64_t place = CutsByRate(cut) ? RateRank(rate) : EdgeAgeBits(of.law, uniform, rate);
  return IsBefore({place, order}, {cut.age_bits, cut.order});
}

// Draws edges, by whole warps:
//   1. Rates come from memberships rounded to tf32, to within a margin (Multiply, FindRates).
//   2. A pair whose high byte is further from its rate than the margin is settled (Settle).
//   3. The others, about one in a hundred, are computed as draw.h says (IsKept).
// So the edges are those of draw.h, however a tensor core sums. In a sequence with gaps no pair is settled. Under a cap
// that drops edges by their rate every edge is computed.
class FragmentDraw {
 public:
  __device__ FragmentDraw(const DeviceCall& call, const FragmentRows& rows) : call_(call), rows_(rows) {}

  // The pairs that are edges, and the others that may be.
  struct Settled {
    uint32_t edges, open;
  };
  // Steps 1 and 2, for the keys first_key.., which is a multiple of kTileKeys.
  __device__ Settled Begin(int32_t first_key) const {
    const DeviceProblem& problem = call_.problems[rows_.problem];
    const DrawnPairs pairs(call_, problem, rows_.head);
    const int lane = ThisThread() % kWarpSize, group = lane / 4, thread = lane % 4;
    const uint32_t valid = Valid(problem.tokens - first_key, group, thread);
    Settled settled = {0, valid};
    if (problem.positions == nullptr) settled = Settle(problem, pairs, first_key, group, thread);
    if (problem.cap >= 0 && CutsByRate(call_.caps[problem.cap].cut)) settled = {0, settled.edges | settled.open};
    settled.edges &= valid;
    settled.open &= valid & ~settled.edges;
    return settled;
  }
  // Step 3, for a bit of a lane's word; by any thread.
  __device__ bool IsEdge(int32_t first_key, int lane, int bit) const {
    const int32_t query = Query(lane / 4 + bit / 16 * 8);
    const int32_t key = first_key + bit % 16 / 2 * 8 + lane % 4 * 2 + bit % 2;
    const DeviceProblem& problem = call_.problems[rows_.problem];
    return DrawnPairs(call_, problem, rows_.head).Forced(query, key) ||
           IsKept(call_, rows_.problem, rows_.head, query, key);
  }

 private:
  __device__ Settled Settle(const DeviceProblem& problem, const DrawnPairs& pairs, int32_t first_key, int group,
                            int thread) const {
    float rates[kFragmentTiles][4] = {};  // inner products, then what u is compared with
    Multiply(pairs, problem.tokens, first_key, group, thread, rates);
    const float tau = problem.cap >= 0 ? static_cast<float>(call_.caps[problem.cap].tau) : 1.0f;
    const float unit = FindRates(problem, tau, rates);
    const float bound = LargestKeyBound(pairs, problem.tokens, first_key, 4 * group + thread);
    uint32_t none = 0, open = 0;  // bits are shifted in from below, the last pair's first
#pragma unroll
    for (int half = 1; half >= 0; --half) {
      const int32_t query = Query(group + 8 * half);
      const PhiloxBlock block = pairs.HighBytes(query, static_cast<uint32_t>(first_key / 16 + thread));
      // Both factors lose less than 2^-10 of themselves, and the product of the bounds is at least the sum of the sizes
      // of all terms.
      const float margin = fmaf(256.0f * tau * (1.1f / 512.0f) * __ldg(pairs.query_bound + query), bound, 0.501f);
      const float settled = margin == margin ? margin : INFINITY;  // a GPU's NaN has no sign
#pragma unroll
      for (int i = 2 * kFragmentTiles - 1; i >= 0; --i) {
        const float room = fmaf(rates[i / 2][2 * half + i % 2], unit, BelowByte(block.word[i / 4], i % 4));
        none = __funnelshift_l(__float_as_uint(room), none, 1);
        open = __funnelshift_l(__float_as_uint(fabsf(room) - settled), open, 1);
      }
    }
    return {(~none & ~open) | Forced(pairs, first_key, group, thread), open};
  }

  // Turns inner products into the numbers that u is compared with; times the number returned they are in units of the
  // high byte. An edge is kept iff u < tau * p, or 1 - exp(-tau * p), where tau is the age of the first dropped edge.
  __device__ static float FindRates(const DeviceProblem& problem, float tau, float (&values)[kFragmentTiles][4]) {
    const float exploration = problem.exploration;
#pragma unroll
    for (int i = 0; i < 4 * kFragmentTiles; ++i) {
      float& value = values[i / 4][i % 4];
      value = __saturatef(fmaxf(value, 0.0f) + exploration);  // EdgeRate, for NaN too
    }
    if (problem.law == Law::kBernoulli) return 256.0f * tau;
    const float scale = -1.44269504f * tau;
#pragma unroll
    for (int i = 0; i < 4 * kFragmentTiles; ++i) {
      float& value = values[i / 4][i % 4];
      value = 1.0f - exp2f(value * scale);
    }
    return 256.0f;
  }

  // The query of a row; of the last row for rows beyond it.
  __device__ int32_t Query(int row) const { return rows_.first_query + min(row, rows_.rows - 1); }

  __device__ void Multiply(const DrawnPairs& pairs, int32_t tokens, int32_t first_key, int group, int thread,
                           float (&sums)[kFragmentTiles][4]) const {
    const float* upper = pairs.Query(Query(group)) + 4 * thread;
    const float* lower = pairs.Query(Query(group + 8)) + 4 * thread;
    // Columns are taken in another order than they lie, the same for both factors, so that loads are of 16 bytes.
#pragma unroll 1
    for (int column = 0; column < call_.rank; column += 16) {
      const float4 x0 = Load(upper + column), x1 = Load(lower + column);
      const float first[4] = {x0.x, x1.x, x0.y, x1.y}, second[4] = {x0.z, x1.z, x0.w, x1.w};
#pragma unroll
      for (int n = 0; n < kFragmentTiles; ++n) {
        const float4 y = Load(pairs.Key(min(first_key + 8 * n + group, tokens - 1)) + column + 4 * thread);
        MmaTf32(sums[n], first, y.x, y.y);
        MmaTf32(sums[n], second, y.z, y.w);
      }
    }
  }
  __device__ static float4 Load(const float* from) {
    const float4 x = __ldg(reinterpret_cast<const float4*>(from));
    return make_float4(ToTf32(x.x), ToTf32(x.y), ToTf32(x.z), ToTf32(x.w));
  }

  __device__ static float LargestKeyBound(const DrawnPairs& pairs, int32_t tokens, int32_t first_key, int lane) {
    float bound = fmaxf(__ldg(pairs.key_bound + min(first_key + lane, tokens - 1)),
                        __ldg(pairs.key_bound + min(first_key + kWarpSize + lane, tokens - 1)));
    for (int step = kWarpSize / 2; step > 0; step /= 2) bound = fmaxf(bound, __shfl_xor_sync(kWholeWarp, bound, step));
    return bound;
  }

  __device__ uint32_t Valid(int32_t keys, int group, int thread) const {
    const uint32_t valid = FragmentOf(KeyRange(0, keys - 1), thread);
    return (group < rows_.rows ? valid : 0u) | (group + 8 < rows_.rows ? valid << 16 : 0u);
  }
  __device__ uint32_t Forced(const DrawnPairs& pairs, int32_t first_key, int group, int thread) const {
    if (!pairs.HasForced()) return 0;
    const int32_t reach = pairs.reach(), upper = Query(group) - first_key, lower = Query(group + 8) - first_key;
    return FragmentOf(KeyRange(upper - reach, upper + reach), thread) |
           FragmentOf(KeyRange(lower - reach, lower + reach), thread) << 16;
  }

  const DeviceCall& call_;
  const FragmentRows rows_;
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_DRAW_FRAGMENT_CUH_
