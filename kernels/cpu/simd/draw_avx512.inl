// Drawing edges with AVX-512: the graph of kernels/draw/draw.h, bit for bit.
//
// The scan (scan_avx512.inl) rejects most pairs and may accept many. Pairs that it leaves get their exact p, 16 at a
// time. Only where the byte does not decide is the low word of the uniform drawn, 16 pairs at a time as well.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_DRAW_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_DRAW_AVX512_INL_

#include "kernels/cpu/simd/certificates_avx512.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_avx512.inl"
#include "kernels/cpu/simd/rates.inl"
#include "kernels/cpu/simd/scan_avx512.inl"
#include "kernels/cpu/simd/squeeze_avx512.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// p of 16 candidates, bit for bit EdgeRate(MembershipDot(x, y), exploration).
template <int kVectors>
EDGEWISE_INLINE F Rates(const DrawTables& tables, const DotOperand<kVectors>& x, const uint32_t* column) {
  const int64_t rank = kVectors > 0 ? 16 * kVectors : tables.rank;
  const int32_t* keys = reinterpret_cast<const int32_t*>(column);
  alignas(64) int32_t packed[16];
  if (__builtin_expect(tables.packed != nullptr, 0)) {
    _mm512_store_si512(packed, _mm512_i32gather_epi32(_mm512_loadu_si512(column), tables.packed, 4));
    keys = packed;
  }
  const F dot = DotRows16<kVectors>(x, tables.rank / 16, tables.y, rank, keys);
  return _mm512_min_ps(_mm512_max_ps(dot, Zero()) + Broadcast(tables.exploration),
                       Broadcast(1.0f));  // max: NaN gives 0
}

// Ends a row's candidates: pads them to a multiple of 16 (at least one batch), and records the row and the valid lanes
// of its batches. Returns the place of the next row.
EDGEWISE_INLINE int64_t EndRow(const DrawScratch& scratch, int row, int64_t begin, int64_t end) {
  _mm512_storeu_si512(scratch.column + end, _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.byte + end), _mm_set1_epi8(-1));
  const int64_t batches = end > begin ? (end - begin + 15) / 16 : 1;
  for (int64_t b = begin / 16; b < begin / 16 + batches; b += 16) {
    _mm512_storeu_si512(scratch.batch_row + b, _mm512_set1_epi32(row));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(scratch.batch_lanes + b), _mm256_set1_epi16(-1));
  }
  const int64_t last = begin / 16 + batches - 1;
  scratch.batch_lanes[last] = static_cast<uint16_t>((1u << (end - 16 * last)) - 1);
  return 16 * (last + 1);
}

// P(at least k edges) and P(k edges) of 16 pairs, k going up from 1.
struct Tail {
  F rate, at_least, exactly;
};

EDGEWISE_INLINE Tail FirstTail(bool poisson, F rate) {
  if (!poisson) return {rate, rate, Zero()};
  const F any = PoissonChance(rate);
  return {rate, any, rate * (Broadcast(1.0f) - any)};
}
EDGEWISE_INLINE void NextTail(Tail& tail, int k) {
  tail.at_least = tail.at_least - tail.exactly;
  tail.exactly = tail.exactly * tail.rate * Broadcast(1.0f / static_cast<float>(k));
}

// Multiplicities of 16 pairs with 256 u in [bottom, top], as far as they are the same for every tau of the span.
// `open`: more edges are possible than are certain.
struct Multiplicities {
  V count;
  __mmask16 edge, parallel, open;
};
EDGEWISE_INLINE Multiplicities FindMultiplicities(const DrawSpan& span, F rates, F bottom, F top, __mmask16 lanes) {
  const F below = Broadcast(256.0f * (1.0f - kChanceMargin));
  const F above = Broadcast(256.0f * (1.0f + kChanceMargin));
  const bool wide = span.low < span.high;
  Tail high = FirstTail(span.poisson, rates * Broadcast(span.high));
  Tail low = wide ? FirstTail(span.poisson, rates * Broadcast(span.low)) : high;
  const __mmask16 edge = _mm512_mask_cmp_ps_mask(lanes, top, low.at_least * below, _CMP_LT_OQ);
  Multiplicities found;
  found.open = _mm512_mask_cmp_ps_mask(lanes & ~edge, bottom, high.at_least * above, _CMP_LE_OQ);
  found.edge = edge;
  found.parallel = 0;
  found.count = _mm512_maskz_set1_epi32(edge, 1);
  if (!span.parallel) return found;
  const F margin = Broadcast(256.0f * kChanceMargin);
  __mmask16 active = edge;
  for (int k = 2; active != 0; ++k) {
    NextTail(high, k);
    if (wide) {
      NextTail(low, k);
    } else {
      low = high;
    }
    const __mmask16 certain = _mm512_mask_cmp_ps_mask(active, top, Fma(low.at_least, below, -margin), _CMP_LT_OQ);
    found.open |= _mm512_mask_cmp_ps_mask(active & ~certain, bottom, Fma(high.at_least, above, margin), _CMP_LE_OQ);
    found.count = _mm512_mask_add_epi32(found.count, certain, found.count, _mm512_set1_epi32(1));
    found.parallel |= certain;
    active = certain;
  }
  found.edge &= ~found.open;
  found.parallel &= ~found.open;
  return found;
}

EDGEWISE_INLINE void StoreCounts(uint8_t* to, const Multiplicities& found) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtepi32_epi8(_mm512_maskz_mov_epi32(found.edge, found.count)));
}

// Decides batches first..last-1 of candidates: fills scratch.count, 0 for no edge. Open pairs go to `extras` and count
// as no edge. Exact spans decide u < p with u = (byte + low / 2^32) / 256 and leave no pair open; others compare
// chances in float32 with a margin. Rows are taken together and nothing branches on random numbers: every pass runs at
// the speed of its arithmetic.
template <bool kExact, int kVectors>
static void DecideBatches(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows,
                          const DrawScratch& scratch, int64_t first, int64_t last, DrawExtras& extras) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  int64_t ties = 0;
  for (int64_t b = first; b < last; ++b) {
    const DrawRow& row = rows[scratch.batch_row[b]];
    const int64_t e = 16 * b;
    const F rates = Rates<kVectors>(tables, LoadOperand<kVectors>(row.x), scratch.column + e);
    const F bytes =
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.byte + e))));
    __mmask16 tie;
    V value;
    if constexpr (kExact) {
      const F scaled = rates * Broadcast(256.0f);
      const F whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      const __mmask16 less = _mm512_cmp_ps_mask(bytes, whole, _CMP_LT_OQ);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.count + e), _mm_movm_epi8(less));
      tie = _mm512_mask_cmp_ps_mask(scratch.batch_lanes[b], bytes, whole, _CMP_EQ_OQ);
      // low < fraction * 2^32, and low is whole: low < the ceiling. All exact: p has 24 significant bits.
      value = _mm512_cvt_roundps_epu32((scaled - whole) * Broadcast(4294967296.0f),
                                       _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    } else {
      const Multiplicities found =
          FindMultiplicities(span, rates, bytes, bytes + Broadcast(1.0f), scratch.batch_lanes[b]);
      StoreCounts(scratch.count + e, found);
      tie = found.open;
      value = _mm512_castps_si512(rates);
    }
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.tie + ties, _mm512_maskz_compress_epi32(tie, index));
    _mm512_storeu_si512(scratch.tie_value + ties, _mm512_maskz_compress_epi32(tie, value));
    _mm512_storeu_si512(scratch.tie_query + ties, _mm512_set1_epi32(static_cast<int>(row.position)));
    ties += _mm_popcnt_u32(tie);
  }
  // Lanes beyond the ties point at the place after the last candidate of all.
  _mm512_storeu_si512(scratch.tie + ties, _mm512_set1_epi32(static_cast<int>(scratch.capacity)));
  for (int64_t t = 0; t < ties; t += 16) {
    const V places = _mm512_loadu_si512(scratch.tie + t);
    const V columns = _mm512_i32gather_epi32(places, scratch.column, 4);
    const V low = LowWords(tables, _mm512_loadu_si512(scratch.tie_query + t), columns);
    const V values = _mm512_loadu_si512(scratch.tie_value + t);
    alignas(16) uint8_t count[16];
    if constexpr (kExact) {
      _mm_store_si128(reinterpret_cast<__m128i*>(count), _mm_movm_epi8(_mm512_cmplt_epu32_mask(low, values)));
    } else {
      const __mmask16 lanes = static_cast<__mmask16>(ties - t < 16 ? (1u << (ties - t)) - 1 : 0xFFFFu);
      const V bytes = _mm512_and_si512(_mm512_i32gather_epi32(places, scratch.byte, 1), _mm512_set1_epi32(255));
      const F uniform = Fma(_mm512_cvtepu32_ps(low), Broadcast(1.0f / 4294967296.0f), _mm512_cvtepi32_ps(bytes));
      const F rates = _mm512_castsi512_ps(values);
      const Multiplicities found = FindMultiplicities(span, rates, uniform, uniform, lanes);
      alignas(64) uint32_t word[16];
      _mm512_store_si512(word, low);
      StoreCounts(count, found);
      for (uint32_t open = found.open; open != 0; open &= open - 1) {
        const int k = __builtin_ctz(open);
        const uint32_t place = scratch.tie[t + k];
        extras.open[extras.opens++] = {extras.first_row + scratch.batch_row[place / 16],
                                       static_cast<int32_t>(scratch.column[place]), rates[k], false,
                                       static_cast<uint64_t>(scratch.byte[place]) << 32 | word[k]};
      }
    }
    for (int k = 0; k < 16; ++k) scratch.count[scratch.tie[t + k]] = count[k];
  }
}

// The same for a span of law bernoulli that is not exact.
template <int kVectors>
static void DecideSpan(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, const DrawScratch& scratch,
                       int64_t first, int64_t last, DrawExtras& extras) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  const F certain = Broadcast(256.0f * span.low * (1.0f - kChanceMargin));
  const F possible = Broadcast(256.0f * span.high * (1.0f + kChanceMargin));
  int64_t ties = 0;
  for (int64_t b = first; b < last; ++b) {
    const DrawRow& row = rows[scratch.batch_row[b]];
    const int64_t e = 16 * b;
    const F rates = Rates<kVectors>(tables, LoadOperand<kVectors>(row.x), scratch.column + e);
    const F bytes =
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.byte + e))));
    const __mmask16 edges = _mm512_cmp_ps_mask(bytes + Broadcast(1.0f), rates * certain, _CMP_LT_OQ);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.count + e), _mm_maskz_set1_epi8(edges, 1));
    const __mmask16 tie = _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(scratch.batch_lanes[b] & ~edges), bytes,
                                                  rates * possible, _CMP_LE_OQ);
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.tie + ties, _mm512_maskz_compress_epi32(tie, index));
    Store(scratch.tie_low + ties, _mm512_maskz_compress_ps(tie, rates));
    _mm512_storeu_si512(scratch.tie_query + ties, _mm512_set1_epi32(static_cast<int>(row.position)));
    ties += _mm_popcnt_u32(tie);
  }
  int64_t opens = 0;
  for (int64_t t = 0; t < ties; t += 16) {
    const auto lanes = static_cast<__mmask16>(ties - t < 16 ? (1u << (ties - t)) - 1 : 0xFFFFu);
    const V places = _mm512_maskz_loadu_epi32(lanes, scratch.tie + t);
    const F rates = Load(scratch.tie_low + t);
    const V low =
        LowWords(tables, _mm512_loadu_si512(scratch.tie_query + t), _mm512_i32gather_epi32(places, scratch.column, 4));
    const V bytes = _mm512_and_si512(_mm512_i32gather_epi32(places, scratch.byte, 1), _mm512_set1_epi32(255));
    const F uniform = Fma(_mm512_cvtepu32_ps(low), Broadcast(1.0f / 4294967296.0f), _mm512_cvtepi32_ps(bytes));
    const __mmask16 edges = _mm512_mask_cmp_ps_mask(lanes, uniform, rates * certain, _CMP_LT_OQ);
    const __mmask16 open =
        _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(lanes & ~edges), uniform, rates * possible, _CMP_LE_OQ);
    // Lanes beyond the ties point at the place after the last candidate of all.
    const V marked = _mm512_mask_mov_epi32(_mm512_set1_epi32(static_cast<int>(scratch.capacity)), lanes, places);
    alignas(64) uint32_t place[16];
    alignas(16) uint8_t count[16];
    _mm512_store_si512(place, marked);
    _mm_store_si128(reinterpret_cast<__m128i*>(count), _mm_maskz_set1_epi8(edges, 1));
    for (int k = 0; k < 16; ++k) scratch.count[place[k]] = count[k];
    opens = KeepOpen(scratch, opens, open, places, low, rates);
  }
  ListOpen(scratch, opens, extras);
}

template <bool kExact>
EDGEWISE_INLINE void Decide(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows,
                            const DrawScratch& scratch, int64_t first, int64_t last, DrawExtras& extras) {
  if (!kExact && !span.poisson) {
    if (tables.rank == 16) return DecideSpan<1>(tables, span, rows, scratch, first, last, extras);
    if (tables.rank == 32) return DecideSpan<2>(tables, span, rows, scratch, first, last, extras);
    return DecideSpan<0>(tables, span, rows, scratch, first, last, extras);
  }
  if (tables.rank == 16) return DecideBatches<kExact, 1>(tables, span, rows, scratch, first, last, extras);
  if (tables.rank == 32) return DecideBatches<kExact, 2>(tables, span, rows, scratch, first, last, extras);
  DecideBatches<kExact, 0>(tables, span, rows, scratch, first, last, extras);
}

// The candidates of a batch that are edges. Lists those of multiplicity above 1.
template <bool kExact>
EDGEWISE_INLINE uint32_t TakeBatch(const DrawScratch& scratch, int64_t batch, DrawExtras& extras) {
  const __m128i count = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.count + 16 * batch));
  if constexpr (!kExact) {
    for (uint32_t parallel = _mm_cmpgt_epu8_mask(count, _mm_set1_epi8(1)) & scratch.batch_lanes[batch]; parallel != 0;
         parallel &= parallel - 1) {
      const int64_t e = 16 * batch + __builtin_ctz(parallel);
      extras.parallel[extras.parallels++] = {extras.first_row + scratch.batch_row[batch],
                                             static_cast<int32_t>(scratch.column[e]), scratch.count[e]};
    }
  }
  return _mm_test_epi8_mask(count, count) & scratch.batch_lanes[batch];
}

// Scans the first few of `count` rows into scratch and decides what they append; returns how many, and the batches in
// `batches`. `certain`: [count, words] of ScanRow.
template <bool kExact, bool kCertain>
EDGEWISE_INLINE int ScanRows(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                             const DrawScratch& scratch, uint64_t* certain, DrawExtras& extras, int64_t* batches) {
  int64_t size = 0;
  int drawn = 0;
  for (; drawn < count && size <= kDrawGroup; ++drawn) {
    const int64_t end = Scan<kCertain>(tables, rows[drawn], span, scratch.column, scratch.byte, size,
                                       kCertain ? certain + drawn * tables.words : nullptr);
    size = EndRow(scratch, drawn, size, end);
  }
  *batches = size / 16;
  if (tables.split != nullptr && !span.poisson) {
    Split split[kBlockRows];
    for (int r = 0; r < drawn; ++r) split[r] = SplitVector(rows[r].x, tables.unit, tables.rank);
    DecideSqueezed<kExact>(tables, span, rows, split, scratch, 0, *batches, extras);
  } else {
    Decide<kExact>(tables, span, rows, scratch, 0, *batches, extras);
  }
  return drawn;
}

template <bool kExact>
static int DrawRowsOf(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                      const DrawScratch& scratch, int32_t* positions, int64_t* ends, DrawExtras& extras) {
  int64_t batches;
  const int drawn = ScanRows<kExact, false>(tables, span, rows, count, scratch, nullptr, extras, &batches);
  int64_t edges = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const uint32_t taken = TakeBatch<kExact>(scratch, b, extras);
    _mm512_storeu_si512(positions + edges, _mm512_maskz_compress_epi32(static_cast<__mmask16>(taken),
                                                                       _mm512_loadu_si512(scratch.column + 16 * b)));
    edges += _mm_popcnt_u32(taken);
    ends[scratch.batch_row[b]] = edges;
  }
  return drawn;
}

// Adds the edges among the decided candidates of batches first..last-1 to the bits of their rows, `words` apart.
template <bool kExact>
EDGEWISE_INLINE void AddListed(const DrawScratch& scratch, int64_t first, int64_t last, uint64_t* bits, int64_t words,
                               DrawExtras& extras) {
  for (int64_t b = first; b < last; ++b) {
    uint64_t* row_bits = bits + scratch.batch_row[b] * words;
    for (uint32_t taken = TakeBatch<kExact>(scratch, b, extras); taken != 0; taken &= taken - 1) {
      const uint32_t column = scratch.column[16 * b + __builtin_ctz(taken)];
      row_bits[column / 64] |= uint64_t{1} << (column % 64);
    }
  }
}

// Law bernoulli where lower bounds decide most edges. Returns the number of rows drawn: all, or one group where there
// are open pairs to list.
template <bool kExact>
static int DrawCertain(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                       const DrawScratch& scratch, uint64_t* bits, DrawExtras& extras) {
  int row = 0;
  do {
    uint64_t* certain = bits + row * tables.words;
    int64_t batches;
    const int drawn = ScanRows<kExact, true>(tables, span, rows + row, count - row, scratch, certain, extras, &batches);
    row += drawn;
    AddListed<kExact>(scratch, 0, batches, certain, tables.words, extras);
  } while (kExact && row < count);
  return row;
}

static constexpr auto* kSplitKey = SplitKey;
static constexpr auto* kCertifyRows = CertifyRows;
static constexpr auto* kSplitKeys = SplitKeys;
static constexpr auto* kLowBound = LowBound;

static int DrawRows(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                    const DrawScratch& scratch, int32_t* positions, int64_t* ends, DrawExtras& extras) {
  const auto draw = span.exact() ? DrawRowsOf<true> : DrawRowsOf<false>;
  return draw(tables, span, rows, count, scratch, positions, ends, extras);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_DRAW_AVX512_INL_
