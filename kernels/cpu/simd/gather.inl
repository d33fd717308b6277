// Attention of a block of query rows over lists of edges.
//
// Keys are taken in segments that all rows finish before the next, so a segment of k and v stays in the cache while the
// rows of the block use it; a row carries its maximum and sums from segment to segment. Within a segment all rows are
// scored, then weighed, then summed, in flat loops over batches of 16 edges of one row: the number of a row's edges in
// a segment is random, and a loop per row would end in a mispredicted branch.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_GATHER_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_GATHER_INL_

#include "kernels/cpu/simd/bias.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/row.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Edges of one row in one segment: places begin.. of the padded lists.
struct RowEdges {
  int64_t begin, count;
  const float* multiplicity;  // or null
};

// Keys and values together that a core's second-level cache does not hold.
inline constexpr int64_t kFarBytes = 1 << 20;

// Whether the keys and values of a segment come from farther away: they are then fetched ahead of their use.
EDGEWISE_INLINE bool IsFar(const AttendBlock& block) {
  const int64_t keys = block.segment < block.keys ? block.segment : block.keys;
  return keys * (block.k_stride + block.v_stride) * static_cast<int64_t>(sizeof(float)) > kFarBytes;
}

EDGEWISE_INLINE void Prefetch(const float* row, int floats) {
  for (int t = 0; t < floats; t += 16) __builtin_prefetch(row + t);
}

// scores of batches first..last-1 of 16 edges.
template <int kVectors, bool kFar>
static void ScoreBatches(const AttendBlock& block, int64_t batches, const int32_t* batch_rows, const int32_t* keys,
                         float* scores) {
  const int vectors = kVectors > 0 ? kVectors : block.depth / 16;
  const int64_t depth = 16 * vectors;
  const int64_t stride = kVectors > 0 ? depth : block.k_stride;  // rows of compiled-in depths are contiguous
  for (int64_t b = 0; b < batches; ++b) {
    if (kFar && b + 1 < batches) {
      for (int e = 16; e < 32; ++e) Prefetch(block.k + keys[16 * b + e] * stride, depth);
    }
    StoreDots16<kVectors>(LoadOperand<kVectors>(block.q + batch_rows[b] * depth), vectors, block.k, stride,
                          keys + 16 * b, scores + 16 * b);
  }
}

EDGEWISE_INLINE void ScoreAll(const AttendBlock& block, int64_t batches, const int32_t* batch_rows, const int32_t* keys,
                              float* scores) {
  if (block.depth == 32 && block.k_stride == 32)
    return ScoreBatches<2, false>(block, batches, batch_rows, keys, scores);
  if (block.depth == 64 && block.k_stride == 64) {
    const auto score = IsFar(block) ? ScoreBatches<4, true> : ScoreBatches<4, false>;
    return score(block, batches, batch_rows, keys, scores);
  }
  ScoreBatches<0, false>(block, batches, batch_rows, keys, scores);
}

// Raises the row's maximum and rescales the sums under the old one. Where no weight is in them they are zero.
EDGEWISE_INLINE void RaiseMax(const AttendBlock& block, int r, float max, float* weight_sum) {
  const F shrink = Exp2(Broadcast(block.max_score[r] - max));
  block.max_score[r] = max;
  if (*weight_sum == 0.0f) return;
  *weight_sum *= shrink[0];
  for (int t = 0; t < block.depth; t += kLanes) {
    Store(block.sums + r * block.depth + t, Load(block.sums + r * block.depth + t) * shrink);
  }
}

// Turns a row's scores into weights under its running maximum and adds them up; zeros up to the end of its last batch.
// `kFew`: few rows have more than one batch.
template <bool kFew>
EDGEWISE_INLINE void WeighRowEdges(const AttendBlock& block, int r, const RowEdges& row, float* scores,
                                   float* weight_sum) {
  float* s = scores + row.begin;
  if (kLanes == 16 && row.count <= 32 && row.multiplicity == nullptr) {
    // Unless few, always two vectors. Scores beyond the row belong to later rows, so they are read but not written.
    const bool one = kFew && row.count <= kLanes;
    const uint32_t bits = static_cast<uint32_t>((uint64_t{1} << row.count) - 1);
    const F first = Select(bits & 0xFFFF, Load(s), Broadcast(kLowest));
    const F second = one ? Broadcast(kLowest) : Select(bits >> 16, Load(s + kLanes), Broadcast(kLowest));
    const float top = ReduceMax(Max(first, second));
    if (top > block.max_score[r]) RaiseMax(block, r, top, weight_sum);
    const F unit = Broadcast(block.max_score[r]);
    F weights = Select(bits & 0xFFFF, Exp2(first - unit), Zero());
    StoreIf(row.count > 0, s, weights);
    if (!one) {
      const F more = Select(bits >> 16, Exp2(second - unit), Zero());
      StoreIf(row.count > 16, s + kLanes, more);
      weights = weights + more;
    }
    *weight_sum += ReduceAdd(weights);
    return;
  }
  F top = Broadcast(kLowest);
  for (int64_t e = 0; e < row.count; e += kLanes) {
    const int rest = row.count - e < kLanes ? static_cast<int>(row.count - e) : kLanes;
    top = Max(top, Select((1u << rest) - 1, Load(s + e), Broadcast(kLowest)));
  }
  const float segment_max = ReduceMax(top);
  if (segment_max > block.max_score[r]) RaiseMax(block, r, segment_max, weight_sum);
  const F unit = Broadcast(block.max_score[r]);
  F total = Zero();
  for (int64_t e = 0; e < (row.count + 15) / 16 * 16; e += kLanes) {
    const int64_t left = row.count - e;
    const int rest = left < 0 ? 0 : left < kLanes ? static_cast<int>(left) : kLanes;
    F weight = Exp2(Load(s + e) - unit);
    if (row.multiplicity != nullptr) weight = weight * LoadFirst(row.multiplicity + e, rest);
    weight = Select((1u << rest) - 1, weight, Zero());
    Store(s + e, weight);
    total = total + weight;
  }
  *weight_sum += ReduceAdd(total);
}

template <bool kFew>
static void WeighRows(const AttendBlock& block, const RowEdges* rows, float* scores, float* weight_sums) {
  for (int r = 0; r < block.rows; ++r) WeighRowEdges<kFew>(block, r, rows[r], scores, &weight_sums[r]);
}

// sums += weights times values of a batch, for kVectors vectors of columns. Even and odd edges are summed apart, which
// halves the chain of dependent additions. Padding has weight 0.
template <int kVectors>
EDGEWISE_INLINE void AddBatch(const int32_t* keys, const float* weights, const float* v, int64_t v_stride,
                              float* sums) {
  F even[kVectors], odd[kVectors];
  for (int c = 0; c < kVectors; ++c) even[c] = odd[c] = Zero();
#pragma GCC unroll 8
  for (int e = 0; e < 16; e += 2) {
    const float* v0 = v + keys[e] * v_stride;
    const float* v1 = v + keys[e + 1] * v_stride;
    const F weight0 = Broadcast(weights[e]);
    const F weight1 = Broadcast(weights[e + 1]);
    for (int c = 0; c < kVectors; ++c) even[c] = Fma(weight0, Load(v0 + c * kLanes), even[c]);
    for (int c = 0; c < kVectors; ++c) odd[c] = Fma(weight1, Load(v1 + c * kLanes), odd[c]);
  }
  for (int c = 0; c < kVectors; ++c) Store(sums + c * kLanes, Load(sums + c * kLanes) + (even[c] + odd[c]));
}

template <int kVectors, int kStride, bool kFar>
static void AddColumns(const AttendBlock& block, int64_t batches, const int32_t* batch_rows, const int32_t* keys,
                       const float* weights, int t) {
  const int64_t stride = kStride > 0 ? kStride : block.v_stride;
  for (int64_t b = 0; b < batches; ++b) {
    if (kFar && b + 1 < batches) {
      for (int e = 16; e < 32; ++e) Prefetch(block.v + keys[16 * b + e] * stride, kVectors * kLanes);
    }
    AddBatch<kVectors>(keys + 16 * b, weights + 16 * b, block.v + t, stride,
                       block.sums + batch_rows[b] * block.depth + t);
  }
}

static void AddAll(const AttendBlock& block, int64_t batches, const int32_t* batch_rows, const int32_t* keys,
                   const float* weights) {
  const int depth = block.depth;
  int t = 0;
  if (depth == 64 && block.v_stride == 64) {
    const auto add = IsFar(block) ? AddColumns<4, 64, true> : AddColumns<4, 64, false>;
    for (; t < 64; t += 4 * kLanes) add(block, batches, batch_rows, keys, weights, t);
  } else if (depth == 32 && block.v_stride == 32) {
    for (; t < 32; t += 2 * kLanes) AddColumns<2, 32, false>(block, batches, batch_rows, keys, weights, t);
  }
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes)
    AddColumns<4, 0, false>(block, batches, batch_rows, keys, weights, t);
  for (; t < depth; t += kLanes) AddColumns<1, 0, false>(block, batches, batch_rows, keys, weights, t);
}

// The edges of row r among the keys first_key..end_key - 1, as keys padded to whole batches. `next`: where its edges
// begin in the block's lists; moves on.
EDGEWISE_INLINE RowEdges TakeEdges(const AttendBlock& block, int r, int64_t first_key, int64_t end_key, int64_t* next,
                                   int64_t begin, int32_t* keys) {
  if (block.offsets == nullptr) {
    const uint64_t* bits = block.bits + r * block.bit_words + first_key / 64;
    const int64_t count = ListBits(bits, (end_key - first_key + 63) / 64, static_cast<int32_t>(first_key), keys);
    FillKeys(keys + count, static_cast<int32_t>(end_key - 1));
    return {begin, count, nullptr};
  }
  const float* multiplicity = block.multiplicity == nullptr ? nullptr : block.multiplicity + *next;
  const int64_t count =
      TakeKeys(block.edges + *next, block.offsets[r + 1] - *next, static_cast<int32_t>(end_key), keys);
  *next += count;
  return {begin, count, multiplicity};
}

static void AttendGather(const AttendBlock& block) {
  int64_t next[kBlockRows];
  RowEdges rows[kBlockRows];
  float weight_sum[kBlockRows] = {};
  for (int r = 0; r < block.rows; ++r) {
    BeginRow(block, r);
    next[r] = block.offsets != nullptr ? block.offsets[r] : 0;
  }
  float* scores = block.scratch;
  auto* keys = reinterpret_cast<int32_t*>(scores + block.room + 64);
  int32_t* batch_rows = keys + block.room + 64;
  for (int64_t first_key = 0; first_key < block.keys; first_key += block.segment) {
    const int64_t end_key = first_key + block.segment < block.keys ? first_key + block.segment : block.keys;
    int64_t batches = 0;
    for (int r = 0; r < block.rows; ++r) {
      rows[r] = TakeEdges(block, r, first_key, end_key, &next[r], 16 * batches, keys + 16 * batches);
      const int64_t more = (rows[r].count + 15) / 16;
      int64_t b = 0;
      do {  // two at least, which later rows overwrite: most rows end without a mispredicted branch
        batch_rows[batches + b] = batch_rows[batches + b + 1] = r;
        b += 2;
      } while (b < more);
      batches += more;
    }
    ScoreAll(block, batches, batch_rows, keys, scores);
    for (int r = 0; block.bias != nullptr && r < block.rows; ++r) {
      AddEdgeBias(block, r, keys + rows[r].begin, rows[r].count, scores + rows[r].begin);
    }
    const auto weigh = batches <= block.rows + block.rows / 32 ? WeighRows<true> : WeighRows<false>;
    weigh(block, rows, scores, weight_sum);
    AddAll(block, batches, batch_rows, keys, scores);
  }
  for (int r = 0; r < block.rows; ++r) EndRow(block, r, weight_sum[r]);
}

static void EdgeScores(const AttendBlock& block, int row, float* out) {
  const int32_t* keys = block.edges + block.offsets[row];
  const int64_t count = block.offsets[row + 1] - block.offsets[row];
  for (int64_t e = 0; e < count; e += 16) {
    alignas(64) int32_t padded[64];
    TakeKeys(keys + e, count - e < 16 ? count - e : 16, INT32_MAX, padded);
    for (int64_t i = count - e; i < 16; ++i) padded[i] = keys[e];
    const int32_t batch_row = row;
    ScoreAll(block, 1, &batch_row, padded, out + e);
    if (block.bias != nullptr) AddEdgeBias(block, row, padded, 16, out + e);
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_GATHER_INL_
