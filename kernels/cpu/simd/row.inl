// The beginning and the end of a row of attention.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_ROW_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_ROW_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr float kLowest = -3.0e38f;  // below every score, and its differences are finite

// Scales the query; sums without an edge.
EDGEWISE_INLINE void BeginRow(const AttendBlock& block, int r) {
  const float* from = block.q_given + r * block.q_stride;
  float* q = block.q + r * block.depth;
  int t = 0;
  for (; t + kLanes <= block.q_columns; t += kLanes) Store(q + t, Load(from + t) * Broadcast(block.q_scale));
  for (; t < block.depth; ++t) q[t] = t < block.q_columns ? from[t] * block.q_scale : 0.0f;
  for (t = 0; t < block.depth; t += kLanes) Store(block.sums + r * block.depth + t, Zero());
  block.max_score[r] = kLowest;
}

EDGEWISE_INLINE bool HasEdges(const AttendBlock& block, int r) {
  if (block.offsets != nullptr) return block.offsets[r + 1] > block.offsets[r];
  if (block.limits != nullptr) return block.limits[r] > (block.starts == nullptr ? 0 : block.starts[r]);
  if (block.bits == nullptr) return block.keys > 0;
  return CountBits(block.bits + r * block.bit_words, block.bit_words) > 0;
}

// The row's sums over the sum of its weights, into the output.
EDGEWISE_INLINE void EndRow(const AttendBlock& block, int r, float weight_sum) {
  float inverse = weight_sum > 0.0f ? 1.0f / weight_sum : 0.0f;
  // Either no edges, which gives zeros, or scores beyond float32, which must not pass for an answer.
  if ((!(weight_sum > 0.0f) || !__builtin_isfinite(block.max_score[r])) && HasEdges(block, r)) {
    inverse = __builtin_nanf("");
  }
  const float* from = block.sums + r * block.depth;
  float* to = block.out + r * block.out_stride;
  int t = 0;
  for (; t + kLanes <= block.out_columns; t += kLanes) Store(to + t, Load(from + t) * Broadcast(inverse));
  for (; t < block.out_columns; ++t) to[t] = from[t] * inverse;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_ROW_INL_
