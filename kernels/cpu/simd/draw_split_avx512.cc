// Drawing edges under any law, and under a cap whose tau is known only roughly, with AVX-512. As draw_avx512.inl and
// draw_tile_avx512.inl, but chances are float32 numbers with a margin: what the margin leaves open goes to the driver,
// which decides by the definitions of kernels/draw.h. Compiled with flags of its own, as attention_avx512.cc is, and
// for the same reason of internal functions only.
#define EDGEWISE_SIMD_NAMESPACE avx512_split

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/vector_avx512.h"
#include "kernels/philox.h"  // constants only

// In this order: each uses what lies before it. They hold functions that only attention_avx512.cc calls.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
// clang-format off
#include "kernels/cpu/simd/draw_philox_avx512.inl"
#include "kernels/cpu/simd/draw_avx512.inl"
#include "kernels/cpu/simd/draw_tile_avx512.inl"
// clang-format on
#pragma GCC diagnostic pop

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Chances are compared in units of 1/256, as bytes are. Their relative error is below 1e-6; those of two and more
// parallel edges are differences, with an absolute error of as much.
inline constexpr float kChanceMargin = 4e-6f;

// P(at least k edges) and P(k edges) of 16 pairs, k going up from 1.
struct Tail {
  F rate, at_least, exactly;
};

EDGEWISE_INLINE Tail FirstTail(bool poisson, F rate) {
  if (!poisson) return {rate, rate, Zero()};
  // (1 - exp(-r)) / r on [0, 1], interpolated; error below 2e-7.
  F p = Broadcast(0.00012907631f);
  p = Fma(p, rate, Broadcast(-0.00130077496f));
  p = Fma(p, rate, Broadcast(0.00827550484f));
  p = Fma(p, rate, Broadcast(-0.0416468493f));
  p = Fma(p, rate, Broadcast(0.166663403f));
  p = Fma(p, rate, Broadcast(-0.499999797f));
  p = Fma(p, rate, Broadcast(0.999999998f));
  const F any = rate * p;
  return {rate, any, rate * (Broadcast(1.0f) - any)};
}
EDGEWISE_INLINE void NextTail(Tail& tail, int k) {
  tail.at_least = tail.at_least - tail.exactly;
  tail.exactly = tail.exactly * tail.rate * Broadcast(1.0f / static_cast<float>(k));
}

// Multiplicities of 16 pairs with 256 u in [bottom, top]: what is sure of them, and where more is possible.
struct Settled {
  V count;
  __mmask16 edge, parallel, open;
};
EDGEWISE_INLINE Settled Settle(const DrawSpan& span, F rates, F bottom, F top, __mmask16 lanes) {
  const F below = Broadcast(256.0f * (1.0f - kChanceMargin));
  const F above = Broadcast(256.0f * (1.0f + kChanceMargin));
  const bool wide = span.low < span.high;
  Tail high = FirstTail(span.poisson, rates * Broadcast(span.high));
  Tail low = wide ? FirstTail(span.poisson, rates * Broadcast(span.low)) : high;
  const __mmask16 edge = _mm512_mask_cmp_ps_mask(lanes, top, low.at_least * below, _CMP_LT_OQ);
  Settled settled;
  settled.open = _mm512_mask_cmp_ps_mask(lanes & ~edge, bottom, high.at_least * above, _CMP_LE_OQ);
  settled.edge = edge;
  settled.parallel = 0;
  settled.count = _mm512_maskz_set1_epi32(edge, 1);
  if (!span.parallel) return settled;
  const F margin = Broadcast(256.0f * kChanceMargin);
  __mmask16 active = edge;
  for (int k = 2; active != 0; ++k) {
    NextTail(high, k);
    if (wide) {
      NextTail(low, k);
    } else {
      low = high;
    }
    const __mmask16 sure = _mm512_mask_cmp_ps_mask(active, top, Fma(low.at_least, below, -margin), _CMP_LT_OQ);
    settled.open |= _mm512_mask_cmp_ps_mask(active & ~sure, bottom, Fma(high.at_least, above, margin), _CMP_LE_OQ);
    settled.count = _mm512_mask_add_epi32(settled.count, sure, settled.count, _mm512_set1_epi32(1));
    settled.parallel |= sure;
    active = sure;
  }
  settled.edge &= ~settled.open;
  settled.parallel &= ~settled.open;
  return settled;
}

EDGEWISE_INLINE F BytesAt(const uint8_t* byte) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(byte))));
}

// Settles batches first..last-1 of candidates: a count per candidate in `accept`, 0 for no edge. Open pairs go to
// `lists` and count as no edge.
template <int kVectors>
static void SettleBatches(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows,
                          const DrawScratch& scratch, int64_t first, int64_t last, int32_t first_row,
                          SplitLists& lists) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  int64_t ties = 0;
  for (int64_t b = first; b < last; ++b) {
    const DrawRow& row = rows[scratch.batch_row[b]];
    const int64_t e = 16 * b;
    const F rates = Rates<kVectors>(tables, LoadOperand<kVectors>(row.x), scratch.column + e);
    const F bytes = BytesAt(scratch.byte + e);
    const Settled settled = Settle(span, rates, bytes, bytes + Broadcast(1.0f), scratch.batch_lanes[b]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.accept + e),
                     _mm512_cvtepi32_epi8(_mm512_maskz_mov_epi32(settled.edge, settled.count)));
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.tie + ties, _mm512_maskz_compress_epi32(settled.open, index));
    _mm512_storeu_si512(scratch.tie_low + ties, _mm512_maskz_compress_epi32(settled.open, _mm512_castps_si512(rates)));
    _mm512_storeu_si512(scratch.tie_query + ties, _mm512_set1_epi32(static_cast<int>(row.position)));
    ties += _mm_popcnt_u32(settled.open);
  }
  _mm512_storeu_si512(scratch.tie + ties, _mm512_set1_epi32(static_cast<int>(scratch.capacity)));
  for (int64_t t = 0; t < ties; t += 16) {
    const __mmask16 lanes = static_cast<__mmask16>(ties - t < 16 ? (1u << (ties - t)) - 1 : 0xFFFFu);
    const V places = _mm512_loadu_si512(scratch.tie + t);
    const V columns = _mm512_i32gather_epi32(places, scratch.column, 4);
    const V low = LowWords(tables, _mm512_loadu_si512(scratch.tie_query + t), columns);
    const V bytes = _mm512_and_si512(_mm512_i32gather_epi32(places, scratch.byte, 1), _mm512_set1_epi32(255));
    const F uniform = Fma(_mm512_cvtepu32_ps(low), Broadcast(1.0f / 4294967296.0f), _mm512_cvtepi32_ps(bytes));
    const F rates = _mm512_castsi512_ps(_mm512_loadu_si512(scratch.tie_low + t));
    const Settled settled = Settle(span, rates, uniform, uniform, lanes);
    alignas(64) uint32_t word[16];
    alignas(16) uint8_t accept[16];
    _mm512_store_si512(word, low);
    _mm_store_si128(reinterpret_cast<__m128i*>(accept),
                    _mm512_cvtepi32_epi8(_mm512_maskz_mov_epi32(settled.edge, settled.count)));
    for (int k = 0; k < 16; ++k) scratch.accept[scratch.tie[t + k]] = accept[k];
    for (uint32_t open = settled.open; open != 0; open &= open - 1) {
      const int k = __builtin_ctz(open);
      const uint32_t place = scratch.tie[t + k];
      lists.open[lists.opens++] = {first_row + scratch.batch_row[place / 16],
                                   static_cast<int32_t>(scratch.column[place]), rates[k], false,
                                   static_cast<uint64_t>(scratch.byte[place]) << 32 | word[k]};
    }
  }
}

EDGEWISE_INLINE void SettleAny(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows,
                               const DrawScratch& scratch, int64_t first, int64_t last, int32_t first_row,
                               SplitLists& lists) {
  if (tables.rank == 32) return SettleBatches<2>(tables, span, rows, scratch, first, last, first_row, lists);
  SettleBatches<0>(tables, span, rows, scratch, first, last, first_row, lists);
}

// Notes the candidates of a batch that have several edges; returns which have any.
EDGEWISE_INLINE uint32_t TakeBatch(const DrawScratch& scratch, int64_t batch, int32_t first_row, SplitLists& lists) {
  const __m128i count = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.accept + 16 * batch));
  for (uint32_t parallel = _mm_cmpgt_epu8_mask(count, _mm_set1_epi8(1)) & scratch.batch_lanes[batch]; parallel != 0;
       parallel &= parallel - 1) {
    const int64_t e = 16 * batch + __builtin_ctz(parallel);
    lists.parallel[lists.parallels++] = {first_row + scratch.batch_row[batch], static_cast<int32_t>(scratch.column[e]),
                                         scratch.accept[e]};
  }
  return _mm_test_epi8_mask(count, count) & scratch.batch_lanes[batch];
}

static int SplitRows(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                     const DrawScratch& scratch, int32_t* positions, int64_t* ends, int32_t first_row,
                     SplitLists& lists) {
  int64_t size = 0;
  int drawn = 0;
  for (; drawn < count && size <= kDrawGroup; ++drawn) {
    const int64_t end = Scan(tables, rows[drawn], span.high, scratch.column, scratch.byte, size);
    size = EndRow(scratch, drawn, size, end);
  }
  SettleAny(tables, span, rows, scratch, 0, size / 16, first_row, lists);
  int64_t edges = 0;
  for (int64_t b = 0; b < size / 16; ++b) {
    const uint32_t taken = TakeBatch(scratch, b, first_row, lists);
    _mm512_storeu_si512(positions + edges, _mm512_maskz_compress_epi32(static_cast<__mmask16>(taken),
                                                                       _mm512_loadu_si512(scratch.column + 16 * b)));
    edges += _mm_popcnt_u32(taken);
    ends[scratch.batch_row[b]] = edges;
  }
  return drawn;
}

template <bool kPoisson, bool kParallel>
static void SplitTileOf(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                        const DrawScratch& scratch, uint64_t* bits, int32_t first_row, SplitLists& lists) {
  const int rank = tables.rank;
  float x[kTileRows * kMaxRank];
  float epsilon[kTileRows];
  QueryWords query[kTileRows];
  const int64_t stride = tables.words * 64 + 64;  // room of a row's candidates: a multiple of 16
  int64_t size[kTileRows] = {};
  for (int r = 0; r < kTileRows; ++r) {
    const DrawRow& row = rows[r < count ? r : 0];
    float square = 0.0f;
    for (int t = 0; t < rank; ++t) {
      x[r * rank + t] = row.x[t];
      square += row.x[t] * row.x[t];
    }
    epsilon[r] = TileEpsilon(rank, __builtin_sqrtf(square) * tables.key_norm) + 3.0f * 256.0f * kChanceMargin;
    query[r] = MixQuery(tables, row.position);
  }
  RoundKeys keys;
  FillRoundKeys(tables, keys);
  const V order = _mm512_load_si512(kByteOrder);
  const F span_low = Broadcast(span.low), span_high = Broadcast(span.high);
  const bool wide = span.low < span.high;
  for (int64_t word = 0; word < tables.words; word += 2) {
    V bytes[kTileRows][2];
    const uint64_t* table = tables.philox + word * 16;
    const uint64_t* chains[3] = {table, table, table};
    HighBytes<3>(chains, query, keys, order, bytes[0]);
    HighBytes<3>(chains, query + 3, keys, order, bytes[3]);
    for (int half = 0; half < 2; ++half) {
      RateTile tile;
      MultiplyTile(x, rank, tables.y_tiles + (word + half) * rank * 64, tile);
      const uint64_t valid = tables.valid[word + half];
      for (int r = 0; r < count; ++r) {
        F sure[4], possible[4], several[4];
        for (int c = 0; c < 4; ++c) {
          const F rate = Min(Max(tile.rate[r][c], Zero()) + Broadcast(tables.exploration), Broadcast(1.0f));
          const Tail high = FirstTail(kPoisson, rate * span_high);
          const F any = wide ? FirstTail(kPoisson, rate * span_low).at_least : high.at_least;
          sure[c] = any * Broadcast(256.0f);
          possible[c] = high.at_least * Broadcast(256.0f);
          if (kParallel) several[c] = (high.at_least - high.exactly) * Broadcast(256.0f);
        }
        const F margin = Broadcast(epsilon[r]);
        const V byte = bytes[r][half];
        const uint64_t edges = _mm512_mask_cmplt_epu8_mask(valid, byte, FloorBytes(sure, -margin));
        uint64_t listed = _mm512_mask_cmple_epu8_mask(valid & ~edges, byte, FloorBytes(possible, margin));
        if (kParallel) listed |= _mm512_mask_cmple_epu8_mask(valid, byte, FloorBytes(several, margin));
        bits[r * tables.words + word + half] = edges & ~listed;
        size[r] = Append(listed, _mm512_set1_epi32(static_cast<int>(word + half) * 64), byte,
                         scratch.column + r * stride, scratch.byte + r * stride, size[r]);
      }
    }
  }
  for (int r = 0; r < count; ++r) {
    const int64_t begin = r * stride;
    const int64_t end = EndRow(scratch, r, begin, begin + size[r]);
    SettleAny(tables, span, rows, scratch, begin / 16, end / 16, first_row, lists);
    for (int64_t b = begin / 16; b < end / 16; ++b) {
      for (uint32_t taken = TakeBatch(scratch, b, first_row, lists); taken != 0; taken &= taken - 1) {
        const uint32_t column = scratch.column[16 * b + __builtin_ctz(taken)];
        bits[r * tables.words + column / 64] |= uint64_t{1} << (column % 64);
      }
    }
  }
}

static void SplitTile(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                      const DrawScratch& scratch, uint64_t* bits, int32_t first_row, SplitLists& lists) {
  const auto split = !span.poisson   ? SplitTileOf<false, false>
                     : span.parallel ? SplitTileOf<true, true>
                                     : SplitTileOf<true, false>;
  split(tables, span, rows, count, scratch, bits, first_row, lists);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

namespace edgewise {

const SplitKernels& Avx512SplitKernels() {
  static constexpr SplitKernels kernels = {avx512_split::SplitRows, avx512_split::SplitTile};
  return kernels;
}

}  // namespace edgewise
