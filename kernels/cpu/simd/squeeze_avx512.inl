// Bounds of p from four bytes a key, with AVX-512. Along a unit vector u, y = alpha u + rest with |rest| = beta, and x
// likewise, so <x, y> lies within beta_x beta_y of alpha_x alpha_y. Most candidates are decided by the bounds, without
// reading y; the others get their exact p. The graph is the same.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_SQUEEZE_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_SQUEEZE_AVX512_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_avx512.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// A vector along u and across it. A vector without usable bounds has along 0 and across infinity.
struct Split {
  float along;   // rounded down; the vector's own is at most kSplitWidth times as large
  float across;  // rounded up; covers the rounding of sums
};

// Upper halves of floats that are rounded down are too small by less than 2^-7, and sums of floats by far less.
inline constexpr float kSplitWidth = 1.008f;

// `unit` has norm 1, or gives nothing but NaN. Sums of `rank` products of x and y are off by at most e |x| |y| / 2, in
// the order of MembershipDot too: 16 chains of rank / 16 products. across^2 is larger by 4 e |x|^2 at least than it
// would be without rounding, so that the product of two is larger by 4 e |x| |y|: enough for the sums and for the
// rounding of the bounds themselves.
struct VectorSums {
  float dot, square;  // with `unit`; with itself
};
EDGEWISE_INLINE VectorSums SumVector(const float* x, const float* unit, int rank) {
  F dots = Zero(), squares = Zero();
  for (int t = 0; t < rank; t += 16) {
    const F part = Load(x + t);
    dots = Fma(part, Load(unit + t), dots);
    squares = Fma(part, part, squares);
  }
  return {ReduceAdd(dots), ReduceAdd(squares)};
}
EDGEWISE_INLINE Split SplitOf(const VectorSums& sums, int rank) {
  const auto [dot, square] = sums;
  const float e = static_cast<float>(rank / 16 + 16) * 0x1p-23f;
  const float norm = __builtin_sqrtf(square);
  const float rest = square - dot * dot;
  // NaN fails. Numbers this far from the ends of float32 neither vanish nor overflow in products.
  if (!(square >= 1e-30f && square <= 1e30f && dot >= 0.25f * norm)) return {0.0f, __builtin_inff()};
  return {dot - 2.0f * e * norm, __builtin_sqrtf((rest > 0.0f ? rest : 0.0f) + 8.0f * e * square) * 1.00001f};
}

EDGEWISE_INLINE Split SplitVector(const float* x, const float* unit, int rank) {
  return SplitOf(SumVector(x, unit, rank), rank);
}

// `along` in the upper half of a word and `across` in the lower, each the upper half of a float.
EDGEWISE_INLINE uint32_t PackSplit(const Split& split) {
  uint32_t along, across;
  __builtin_memcpy(&along, &split.along, sizeof(along));
  __builtin_memcpy(&across, &split.across, sizeof(across));
  return (along & 0xFFFF0000u) | (across + 0xFFFFu) >> 16;
}
static uint32_t SplitKey(const float* y, const float* unit, int rank) { return PackSplit(SplitVector(y, unit, rank)); }

// p_low <= p <= p_high of 16 pairs, times kScale, a power of 2.
struct RateBounds {
  F low, high;
};
template <int kScale>
EDGEWISE_INLINE RateBounds BoundRates(F query_along, F query_across, V keys, float exploration) {
  const F least = Broadcast(kScale * exploration), most = Broadcast(static_cast<float>(kScale));
  const F along = _mm512_castsi512_ps(_mm512_and_si512(keys, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  const F rest = query_across * _mm512_castsi512_ps(_mm512_slli_epi32(keys, 16));
  const F low = _mm512_fmsub_ps(query_along, along, rest);
  const F high = Fma(query_along * Broadcast(kSplitWidth * kSplitWidth), along, rest);
  // EdgeRate of both, which rises with its argument. NaN gives 0 below and 1 above.
  return {_mm512_min_ps(_mm512_max_ps(low, Zero()) + least, most),
          _mm512_min_ps(_mm512_max_ps(Zero(), high) + least, most)};
}
template <int kScale>
EDGEWISE_INLINE RateBounds BoundRates(const Split& query, V keys, float exploration) {
  return BoundRates<kScale>(Broadcast(query.along), Broadcast(query.across), keys, exploration);
}

// <x, y> of 16 pairs, in the order of MembershipDot. Vectors have 16 * `vectors` elements.
EDGEWISE_INLINE F DotPairs4(const float* const* x, const float* const* y, int vectors) {
  F sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = Load(x[4 * i]) * Load(y[4 * i]);
  for (int t = 1; t < vectors; ++t) {
    for (int i = 0; i < 4; ++i) sum[i] = Fma(Load(x[4 * i] + 16 * t), Load(y[4 * i] + 16 * t), sum[i]);
  }
  return Halve4(Halve8(sum[0], sum[1]), Halve8(sum[2], sum[3]));
}
EDGEWISE_INLINE F DotPairs16(const float* const* x, const float* const* y, int vectors) {
  const F s0 = DotPairs4(x, y, vectors), s1 = DotPairs4(x + 1, y + 1, vectors);
  const F s01 = Halve2(s0, s1);
  const F s2 = DotPairs4(x + 2, y + 2, vectors), s3 = DotPairs4(x + 3, y + 3, vectors);
  return Halve1(s01, Halve2(s2, s3));
}

// scratch.count[places] = 1 for the lanes of `edges`.
EDGEWISE_INLINE void MarkEdges(const DrawScratch& scratch, const uint32_t* places, uint32_t edges) {
  for (; edges != 0; edges &= edges - 1) scratch.count[places[__builtin_ctz(edges)]] = 1;
}

// Puts the open lanes of ties behind `opens` others, in place of ties that are decided: places, low words and rates.
// Returns the number of all. Below they are listed, without a branch on random numbers.
EDGEWISE_INLINE int64_t KeepOpen(const DrawScratch& scratch, int64_t opens, __mmask16 lanes, V places, V low, F rates) {
  _mm512_storeu_si512(scratch.tie + opens, _mm512_maskz_compress_epi32(lanes, places));
  _mm512_storeu_si512(scratch.tie_value + opens, _mm512_maskz_compress_epi32(lanes, low));
  Store(scratch.tie_low + opens, _mm512_maskz_compress_ps(lanes, rates));
  return opens + static_cast<int64_t>(_mm_popcnt_u32(lanes));
}
EDGEWISE_INLINE void ListOpen(const DrawScratch& scratch, int64_t opens, DrawExtras& extras) {
  OpenPair* const listed = extras.open + extras.opens;
  for (int64_t i = 0; i < opens; ++i) {
    const uint32_t place = scratch.tie[i];
    listed[i] = {extras.first_row + scratch.batch_row[place / 16], static_cast<int32_t>(scratch.column[place]),
                 scratch.tie_low[i], false, static_cast<uint64_t>(scratch.byte[place]) << 32 | scratch.tie_value[i]};
  }
  extras.opens += opens;
}

// Candidates whose high byte their bounds do not decide: their low words, and the bounds again. Leaves those that are
// open still, with their low words as values, and returns their number.
static int64_t DecideByLowWord(const DrawTables& tables, const DrawScratch& scratch, int64_t ties) {
  constexpr int kUp = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC, kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const F unit = Broadcast(1.0f / 4294967296.0f);
  int64_t open = 0;
  for (int64_t t = 0; t < ties; t += 16) {
    const auto lanes = static_cast<__mmask16>(ties - t < 16 ? (1u << (ties - t)) - 1 : 0xFFFFu);
    const V places = _mm512_maskz_loadu_epi32(lanes, scratch.tie + t);
    const V queries = _mm512_loadu_si512(scratch.tie_query + t);
    const V columns = _mm512_i32gather_epi32(places, scratch.column, 4);
    const V low = LowWords(tables, queries, columns);
    const V bytes = _mm512_and_si512(_mm512_i32gather_epi32(places, scratch.byte, 1), _mm512_set1_epi32(255));
    const F whole = _mm512_cvtepi32_ps(bytes);
    // 256 u, rounded up and down.
    const F top = _mm512_fmadd_round_ps(_mm512_cvt_roundepu32_ps(low, kUp), unit, whole, kUp);
    const F bottom = _mm512_fmadd_round_ps(_mm512_cvt_roundepu32_ps(low, kDown), unit, whole, kDown);
    const __mmask16 edges = _mm512_mask_cmp_ps_mask(lanes, top, Load(scratch.tie_low + t), _CMP_LT_OQ);
    const __mmask16 left = _mm512_mask_cmp_ps_mask(lanes & ~edges, bottom, Load(scratch.tie_high + t), _CMP_LT_OQ);
    alignas(64) uint32_t place[16];
    _mm512_store_si512(place, places);
    MarkEdges(scratch, place, edges);
    _mm512_storeu_si512(scratch.tie + open, _mm512_maskz_compress_epi32(left, places));
    _mm512_storeu_si512(scratch.tie_value + open, _mm512_maskz_compress_epi32(left, low));
    open += _mm_popcnt_u32(left);
  }
  return open;
}

// Margin of chances, which are computed in units of 1/256 as bytes are. Their relative error is below 1e-6; the chances
// of two and more parallel edges are differences, with an absolute error of the same size.
inline constexpr float kChanceMargin = 4e-6f;

// Decides the first `open` ties, whose low words are their values, by their exact p. Ties of spans that are not exact
// and stay open go to `extras`.
template <bool kExact>
static void DecideByRate(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows,
                         const DrawScratch& scratch, int64_t open, DrawExtras& extras) {
  const int rank = tables.rank;
  int64_t opens = 0;
  for (int64_t t = 0; t < open; t += 16) {
    const int count = open - t < 16 ? static_cast<int>(open - t) : 16;
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const float *x[16], *y[16];
    alignas(64) int32_t byte[16];
    const uint32_t* places = scratch.tie + t;
    for (int i = 0; i < 16; ++i) {
      const uint32_t place = places[i < count ? i : 0];
      const uint32_t column = scratch.column[place];
      const int64_t key = tables.packed == nullptr ? static_cast<int64_t>(column) : tables.packed[column];
      x[i] = rows[scratch.batch_row[place / 16]].x;
      y[i] = tables.y + key * rank;
      byte[i] = scratch.byte[place];
    }
    const F dot = DotPairs16(x, y, rank / 16);
    const F rates = _mm512_min_ps(_mm512_max_ps(dot, Zero()) + Broadcast(tables.exploration), Broadcast(1.0f));
    const F scaled = rates * Broadcast(256.0f);
    const F bytes = _mm512_cvtepi32_ps(_mm512_load_si512(byte));
    const V low = _mm512_loadu_si512(scratch.tie_value + t);
    if constexpr (kExact) {
      const F whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      // As DecideBatches: low < the ceiling of the fraction.
      const V limit = _mm512_cvt_roundps_epu32((scaled - whole) * Broadcast(4294967296.0f),
                                               _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
      const __mmask16 equal = _mm512_cmp_ps_mask(bytes, whole, _CMP_EQ_OQ);
      const uint32_t edges =
          _mm512_cmp_ps_mask(bytes, whole, _CMP_LT_OQ) | _mm512_mask_cmplt_epu32_mask(equal, low, limit);
      MarkEdges(scratch, places, edges & lanes);
    } else {
      const F uniform = Fma(_mm512_cvtepu32_ps(low), Broadcast(1.0f / 4294967296.0f), bytes);
      const F certain = scaled * Broadcast(span.low * (1.0f - kChanceMargin));
      const F possible = scaled * Broadcast(span.high * (1.0f + kChanceMargin));
      const __mmask16 edges = _mm512_mask_cmp_ps_mask(lanes, uniform, certain, _CMP_LT_OQ);
      MarkEdges(scratch, places, edges);
      const __mmask16 between =
          _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(lanes & ~edges), uniform, possible, _CMP_LE_OQ);
      opens = KeepOpen(scratch, opens, between, _mm512_loadu_si512(places), low, rates);
    }
  }
  if (!kExact) ListOpen(scratch, opens, extras);
}

// Decides the candidates of batches first..last-1 under law bernoulli: fills scratch.count. `split`: of the rows. Not
// inlined: the loop beside it, of heads without bounds by key, became 4 % slower.
template <bool kExact>
__attribute__((noinline)) static void DecideSqueezed(const DrawTables& tables, const DrawSpan& span,
                                                     const DrawRow* rows, const Split* split,
                                                     const DrawScratch& scratch, int64_t first, int64_t last,
                                                     DrawExtras& extras) {
  // Bounds of tau * p in place of p.
  const F down = Broadcast(kExact ? 1.0f : span.low * (1.0f - kChanceMargin));
  const F up = Broadcast(kExact ? 1.0f : span.high * (1.0f + kChanceMargin));
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  int64_t ties = 0;
  for (int64_t b = first; b < last; ++b) {
    const int row = scratch.batch_row[b];
    const int64_t e = 16 * b;
    const V keys = _mm512_i32gather_epi32(_mm512_loadu_si512(scratch.column + e), tables.split, 4);
    const Split scaled = {256.0f * split[row].along, 256.0f * split[row].across};
    const RateBounds rates = BoundRates<256>(scaled, keys, tables.exploration);
    const F low = rates.low * down, high = rates.high * up;
    const F bytes =
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.byte + e))));
    const __mmask16 edges = _mm512_cmp_ps_mask(bytes + Broadcast(1.0f), low, _CMP_LE_OQ);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.count + e), _mm_maskz_set1_epi8(edges, 1));
    const __mmask16 tie =
        _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(scratch.batch_lanes[b] & ~edges), bytes, high, _CMP_LT_OQ);
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.tie + ties, _mm512_maskz_compress_epi32(tie, index));
    _mm512_storeu_si512(scratch.tie_query + ties, _mm512_set1_epi32(static_cast<int>(rows[row].position)));
    Store(scratch.tie_low + ties, _mm512_maskz_compress_ps(tie, low));
    Store(scratch.tie_high + ties, _mm512_maskz_compress_ps(tie, high));
    ties += _mm_popcnt_u32(tie);
  }
  DecideByRate<kExact>(tables, span, rows, scratch, DecideByLowWord(tables, scratch, ties), extras);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_SQUEEZE_AVX512_INL_
