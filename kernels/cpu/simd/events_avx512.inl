// Drawing events with AVX-512: the edges of kernels/draw/events.h, bit for bit.
//
// Each step takes the events of several rows together, so that short rows fill vectors and nothing branches on random
// numbers: RowEvents draws ages and places, FindKeys the keys, JudgeByBounds decides most events from four bytes a key
// (squeeze_avx512.inl), JudgeByCertificates most of the others where a head has certificates (certificates_avx512.inl),
// JudgeByRate the rest, TakeAccepted lists what is accepted. Rows of few events share vectors in each of these steps
// (DrawFewEvents).
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EVENTS_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EVENTS_AVX512_INL_

#include "kernels/cpu/simd/certificates_avx512.inl"
#include "kernels/cpu/simd/event_rows_avx512.inl"
#include "kernels/cpu/simd/events_shared.inl"
#include "kernels/cpu/simd/philox_avx512.inl"
#include "kernels/cpu/simd/squeeze_avx512.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Keys of the first `size` places; places become distances.
static void FindKeys(const EventDraw& draw, const EventScratch& scratch, int64_t size) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  const V even = _mm512_add_epi32(iota, iota), one = _mm512_set1_epi32(1);
  const V tokens = _mm512_set1_epi32(static_cast<int>(draw.tokens));
  int64_t left = 0;  // events whose key is not that of the first place of their run
  for (int64_t e = 0; e < size; e += 16) {
    const V place = _mm512_loadu_si512(scratch.place + e);
    const V run = _mm512_srli_epi32(place, static_cast<unsigned>(draw.guide_shift));
    const V low = _mm512_i32gather_epi64(_mm512_castsi512_si256(run), draw.guide, 8);
    const V high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(run, 1), draw.guide, 8);
    const V end = _mm512_permutex2var_epi32(low, even, high);
    const V key = _mm512_permutex2var_epi32(low, _mm512_or_si512(even, one), high);
    const __mmask16 beyond = _mm512_cmple_epu32_mask(end, place) & _mm512_cmplt_epi32_mask(key, tokens);
    const V distance = _mm512_sub_epi32(_mm512_sub_epi32(end, place), one);
    _mm512_storeu_si512(scratch.key + e, key);
    _mm512_storeu_si512(scratch.place + e, _mm512_mask_mov_epi32(distance, beyond, place));
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.open + left, _mm512_maskz_compress_epi32(beyond, index));
    left += _mm_popcnt_u32(beyond);
  }
  for (int64_t e = 0; e < left; e += 16) {
    const auto lanes = static_cast<__mmask16>(left - e < 16 ? (1u << (left - e)) - 1 : 0xFFFFu);
    const V index = _mm512_maskz_loadu_epi32(lanes, scratch.open + e);
    const V place = _mm512_mask_i32gather_epi32(one, lanes, index, scratch.place, 4);
    V key = _mm512_mask_i32gather_epi32(one, lanes, index, scratch.key, 4);
    V end = one;
    for (__mmask16 beyond = lanes; beyond != 0;) {
      key = _mm512_mask_add_epi32(key, beyond, key, one);
      end = _mm512_mask_i32gather_epi32(end, beyond, _mm512_add_epi32(key, one), draw.places, 4);
      beyond = _mm512_mask_cmple_epu32_mask(beyond, end, place) & _mm512_cmplt_epi32_mask(key, tokens);
    }
    _mm512_mask_i32scatter_epi32(scratch.key, lanes, index, key, 4);
    _mm512_mask_i32scatter_epi32(scratch.place, lanes, index, _mm512_sub_epi32(_mm512_sub_epi32(end, place), one), 4);
  }
}

// The operands that JudgeEvent compares, for 16 events: (distance + 1) * left or distance * left, and places.
struct Judgement {
  F age, distance;  // age as a share of 1; 0 where the law does not look at it
};
EDGEWISE_INLINE __mmask16 Accepted(const Judgement& event, F rates, F events, __mmask16 lanes) {
  const F left = _mm512_fnmadd_ps(event.age, rates, Broadcast(1.0f));
  return _mm512_mask_cmp_ps_mask(lanes, (event.distance + Broadcast(1.0f)) * left, rates * events, _CMP_LE_OQ);
}
EDGEWISE_INLINE __mmask16 Rejected(const Judgement& event, F rates, F events, __mmask16 lanes) {
  const F left = _mm512_fnmadd_ps(event.age, rates, Broadcast(1.0f));
  return _mm512_mask_cmp_ps_mask(lanes, event.distance * left, rates * events, _CMP_GE_OQ);
}

// A query's bounds along and across the direction.
template <bool kCertified>
EDGEWISE_INLINE Split SplitQuery(const EventDraw& draw, int64_t row) {
  if (kCertified) return SplitOf(draw.queries.certificates[row], draw.rank);
  return SplitVector(draw.x + row * draw.rank, draw.unit, draw.rank);
}

// Lists some of the events e.. behind `opens` others. Returns the number of all.
template <bool kCertified>
EDGEWISE_INLINE int64_t ListOpen(const EventScratch& scratch, int64_t opens, __mmask16 open, int64_t e, V key, V row) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  const auto list = [&](auto* to, V from) { _mm512_storeu_si512(to + opens, _mm512_maskz_compress_epi32(open, from)); };
  list(scratch.open, _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota));
  list(scratch.open_row, row);
  if (kCertified) {
    list(scratch.open_key, key);
    list(scratch.open_age, _mm512_loadu_si512(scratch.age + e));
    list(scratch.open_distance, _mm512_loadu_si512(scratch.place + e));
  }
  return opens + static_cast<int64_t>(_mm_popcnt_u32(open));
}

// Decides events by bounds of their rates; both comparisons rise with the rate. Returns how many are open still.
template <bool kCertified>
static int64_t JudgeByBounds(const EventDraw& draw, int64_t first, int rows, const EventScratch& scratch) {
  const V tokens = _mm512_set1_epi32(static_cast<int>(draw.tokens));
  const F year = Broadcast(draw.law == Law::kBernoulli ? 0x1p-31f : 0.0f);
  int64_t opens = 0;
  for (int r = 0; r < rows; ++r) {
    const F events = Broadcast(2.0f * draw.mean_gap[first + r]);
    Split query = {0.0f, 0.0f};
    if (draw.split != nullptr) query = SplitQuery<kCertified>(draw, first + r);
    const int64_t end = scratch.row_begin[r] + scratch.row_events[r];
    for (int64_t e = scratch.row_begin[r]; e < end; e += 16) {
      auto lanes = static_cast<__mmask16>(end - e < 16 ? (1u << (end - e)) - 1 : 0xFFFFu);
      const V key = _mm512_loadu_si512(scratch.key + e);
      lanes &= _mm512_cmplt_epi32_mask(key, tokens);
      __mmask16 accepted = 0, open = lanes;
      if (draw.split != nullptr) {
        const V keys = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, key, draw.split, 4);
        const RateBounds rates = BoundRates<1>(query, keys, draw.exploration);
        const Judgement event = {_mm512_cvtepu32_ps(_mm512_loadu_si512(scratch.age + e)) * year,
                                 _mm512_cvtepu32_ps(_mm512_loadu_si512(scratch.place + e))};
        accepted = Accepted(event, rates.low, events, lanes);
        open = lanes & ~accepted & ~Rejected(event, rates.high, events, lanes);
      }
      scratch.accepted[e / 16] = accepted;
      opens = ListOpen<kCertified>(scratch, opens, open, e, key, _mm512_set1_epi32(r));
    }
  }
  return opens;
}

// JudgeByBounds of rows whose events follow each other without gaps, by their rows in open_row.
template <bool kCertified>
static int64_t JudgeFewByBounds(const EventDraw& draw, int64_t first, int rows, int64_t size,
                                const EventScratch& scratch) {
  const V tokens = _mm512_set1_epi32(static_cast<int>(draw.tokens));
  const F year = Broadcast(draw.law == Law::kBernoulli ? 0x1p-31f : 0.0f);
  float along[kBlockRows], across[kBlockRows];
  for (int r = 0; draw.split != nullptr && r < rows; ++r) {
    const Split query = SplitQuery<kCertified>(draw, first + r);
    along[r] = query.along;
    across[r] = query.across;
  }
  int64_t opens = 0;
  for (int64_t e = 0; e < size; e += 16) {
    auto lanes = static_cast<__mmask16>(size - e < 16 ? (1u << (size - e)) - 1 : 0xFFFFu);
    const V key = _mm512_loadu_si512(scratch.key + e), row = _mm512_loadu_si512(scratch.open_row + e);
    lanes &= _mm512_cmplt_epi32_mask(key, tokens);
    __mmask16 accepted = 0, open = lanes;
    if (draw.split != nullptr) {
      const F gap = _mm512_i32gather_ps(row, draw.mean_gap + first, 4), events = gap + gap;
      const V keys = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, key, draw.split, 4);
      const RateBounds rates = BoundRates<1>(_mm512_i32gather_ps(row, along, 4), _mm512_i32gather_ps(row, across, 4),
                                             keys, draw.exploration);
      const Judgement event = {_mm512_cvtepu32_ps(_mm512_loadu_si512(scratch.age + e)) * year,
                               _mm512_cvtepu32_ps(_mm512_loadu_si512(scratch.place + e))};
      accepted = Accepted(event, rates.low, events, lanes);
      open = lanes & ~accepted & ~Rejected(event, rates.high, events, lanes);
    }
    scratch.accepted[e / 16] = accepted;
    // Rows are not overwritten before they are read: there are no more open events than events.
    opens = ListOpen<kCertified>(scratch, opens, open, e, key, row);
  }
  return opens;
}

// Decides open events by certificates. Returns how many are open still, in the same order.
template <int kBytes>
static int64_t JudgeByCertificates(const EventDraw& draw, int64_t first, int64_t opens, const EventScratch& scratch) {
  const F year = Broadcast(draw.law == Law::kBernoulli ? 0x1p-31f : 0.0f);
  const int64_t bytes = CertificateBytes(draw.rank);
  const Certificate* const queries = draw.queries.certificates + first;
  const uint8_t* const query_rests = draw.queries.rests + first * bytes;
  int64_t left = 0;
  for (int64_t o = 0; o < opens; o += 16) {
    const int count = opens - o < 16 ? static_cast<int>(opens - o) : 16;
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const V index = _mm512_loadu_si512(scratch.open + o), row = _mm512_maskz_loadu_epi32(lanes, scratch.open_row + o);
    const V key = _mm512_maskz_loadu_epi32(lanes, scratch.open_key + o);
    const V age = _mm512_loadu_si512(scratch.open_age + o), distance = _mm512_loadu_si512(scratch.open_distance + o);
    alignas(64) uint32_t rows[16], keys[16];
    _mm512_store_si512(rows, row);
    _mm512_store_si512(keys, key);
    const Certificates x = LoadCertificates(queries, rows), y = LoadCertificates(draw.keys.certificates, keys);
    const V dot = _mm512_sub_epi32(DotRests16<kBytes>(query_rests, rows, draw.keys.rests, keys, bytes),
                                   _mm512_slli_epi32(x.sum, 7));
    const RateBounds rates = BoundRates(x, y, dot, draw.rank, draw.exploration);
    const F gap = _mm512_i32gather_ps(row, draw.mean_gap + first, 4), events = gap + gap;
    const Judgement event = {_mm512_cvtepu32_ps(age) * year, _mm512_cvtepu32_ps(distance)};
    uint32_t accepted = Accepted(event, rates.low, events, lanes);
    const auto open = static_cast<__mmask16>(lanes & ~accepted & ~Rejected(event, rates.high, events, lanes));
    for (; accepted != 0; accepted &= accepted - 1) {
      const uint32_t at = scratch.open[o + __builtin_ctz(accepted)];
      scratch.accepted[at / 16] |= static_cast<uint16_t>(1u << (at % 16));
    }
    _mm512_storeu_si512(scratch.open + left, _mm512_maskz_compress_epi32(open, index));
    _mm512_storeu_si512(scratch.open_row + left, _mm512_maskz_compress_epi32(open, row));
    left += _mm_popcnt_u32(open);
  }
  return left;
}

// Decides the open events by their rates.
static void JudgeByRate(const EventDraw& draw, int64_t first, int64_t opens, const EventScratch& scratch) {
  const F year = Broadcast(draw.law == Law::kBernoulli ? 0x1p-31f : 0.0f);
  const int rank = draw.rank;
  for (int64_t o = 0; o < opens; o += 16) {
    const int count = opens - o < 16 ? static_cast<int>(opens - o) : 16;
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const float *x[16], *y[16];
    for (int i = 0; i < 16; ++i) {
      const int64_t at = o + (i < count ? i : 0);
      x[i] = draw.x + (first + scratch.open_row[at]) * rank;
      y[i] = draw.y + static_cast<int64_t>(scratch.key[scratch.open[at]]) * rank;
    }
    const F dot = DotPairs16(x, y, rank / 16);
    const F rates = _mm512_min_ps(_mm512_max_ps(dot, Zero()) + Broadcast(draw.exploration), Broadcast(1.0f));
    const V index = _mm512_maskz_loadu_epi32(lanes, scratch.open + o);
    const V row = _mm512_maskz_loadu_epi32(lanes, scratch.open_row + o);
    const F gap = _mm512_i32gather_ps(row, draw.mean_gap + first, 4), events = gap + gap;
    const V age = _mm512_i32gather_epi32(index, scratch.age, 4);
    const V distance = _mm512_i32gather_epi32(index, scratch.place, 4);
    const Judgement event = {_mm512_cvtepu32_ps(age) * year, _mm512_cvtepu32_ps(distance)};
    uint32_t accepted = Accepted(event, rates, events, lanes);
    for (uint32_t open = lanes & ~accepted & ~Rejected(event, rates, events, lanes); open != 0; open &= open - 1) {
      const int i = __builtin_ctz(open);
      const uint32_t at = scratch.open[o + i];
      const int64_t r = scratch.open_row[o + i];
      const auto number = static_cast<uint32_t>(at - scratch.row_begin[r]);
      if (Accepts(draw, PositionOf(draw, first + r), draw.mean_gap[first + r], number, rates[i], scratch.age[at],
                  scratch.place[at])) {
        accepted |= 1u << i;
      }
    }
    for (; accepted != 0; accepted &= accepted - 1) {
      const uint32_t at = scratch.open[o + __builtin_ctz(accepted)];
      scratch.accepted[at / 16] |= static_cast<uint16_t>(1u << (at % 16));
    }
  }
}

EDGEWISE_INLINE void JudgeOpen(const EventDraw& draw, int64_t first, int64_t opens, const EventScratch& scratch) {
  if (draw.keys.certificates != nullptr) {
    const auto judge = CertificateBytes(draw.rank) == 128 ? JudgeByCertificates<128> : JudgeByCertificates<0>;
    opens = judge(draw, first, opens, scratch);
  }
  JudgeByRate(draw, first, opens, scratch);
}

static void TakeAccepted(int rows, const EventScratch& scratch, int64_t* ends) {
  int64_t edges = 0;
  for (int r = 0; r < rows; ++r) {
    const int64_t end = scratch.row_begin[r] + scratch.row_events[r];
    for (int64_t e = scratch.row_begin[r]; e < end; e += 16) {
      const __mmask16 lanes = scratch.accepted[e / 16];
      _mm512_storeu_si512(scratch.edge_key + edges,
                          _mm512_maskz_compress_epi32(lanes, _mm512_loadu_si512(scratch.key + e)));
      _mm512_storeu_si512(scratch.edge_age + edges,
                          _mm512_maskz_compress_epi32(lanes, _mm512_loadu_si512(scratch.age + e)));
      edges += _mm_popcnt_u32(lanes);
    }
    ends[r] = edges;
  }
}

static void TakeFewAccepted(int rows, int64_t size, const EventScratch& scratch, int64_t* ends) {
  int64_t edges = 0;
  int r = 0;
  for (int64_t e = 0; e < size; e += 16) {
    const __mmask16 lanes = scratch.accepted[e / 16];
    _mm512_storeu_si512(scratch.edge_key + edges,
                        _mm512_maskz_compress_epi32(lanes, _mm512_loadu_si512(scratch.key + e)));
    _mm512_storeu_si512(scratch.edge_age + edges,
                        _mm512_maskz_compress_epi32(lanes, _mm512_loadu_si512(scratch.age + e)));
    for (; r < rows && scratch.row_begin[r] + scratch.row_events[r] <= e + 16; ++r) {
      const int64_t before = scratch.row_begin[r] + scratch.row_events[r] - e;
      ends[r] = edges + _mm_popcnt_u32(lanes & ((1u << before) - 1));
    }
    edges += _mm_popcnt_u32(lanes);
  }
  for (; r < rows; ++r) ends[r] = edges;
}

// DrawEvents of rows of few events: without gaps between rows, which would be most of each vector.
static int DrawFewEvents(const EventDraw& draw, int64_t first, int count, uint32_t limit, const EventScratch& scratch,
                         int64_t* ends) {
  int64_t size = 0;
  int drawn = 0;
  const auto take = [&](int64_t end) {
    scratch.row_begin[drawn] = size;
    scratch.row_events[drawn] = end - size;
    do {
      _mm512_storeu_si512(scratch.open_row + size, _mm512_set1_epi32(drawn));
      size += 16;
    } while (size < end);
    size = end;
    ++drawn;
  };
  while (drawn < count && size <= kDrawGroup) {
    int64_t two[2];
    if (drawn + 1 < count && TwoRowsOfEvents(draw, first + drawn, limit, scratch, size, two)) {
      take(two[0]);
      take(two[1]);
      continue;
    }
    const int64_t end = RowEvents(draw, first + drawn, limit, scratch, size);
    if (end < 0) break;
    take(end);
  }
  _mm512_storeu_si512(scratch.open_row + size, _mm512_setzero_si512());
  _mm512_storeu_si512(scratch.place + size, _mm512_setzero_si512());
  FindKeys(draw, scratch, size);
  const auto judge = draw.keys.certificates != nullptr ? JudgeFewByBounds<true> : JudgeFewByBounds<false>;
  JudgeOpen(draw, first, judge(draw, first, drawn, size, scratch), scratch);
  TakeFewAccepted(drawn, size, scratch, ends);
  return drawn;
}

// Whether rows have few events, by the first of them.
EDGEWISE_INLINE bool HasFewEvents(const EventDraw& draw, int64_t first, int count, uint32_t limit) {
  constexpr float kFewEvents = 13.0f;
  const int rows = count < 16 ? count : 16;
  float events = 0.0f;
  for (int r = 0; r < rows; ++r) {
    const float mean_gap = draw.mean_gap[first + r];
    events += mean_gap > 0.0f ? static_cast<float>(limit) / mean_gap : 0.0f;
  }
  return events <= kFewEvents * static_cast<float>(rows);
}

static int DrawEvents(const EventDraw& draw, int64_t first, int count, uint32_t limit, const EventScratch& scratch,
                      int64_t* ends) {
  if (HasFewEvents(draw, first, count, limit)) return DrawFewEvents(draw, first, count, limit, scratch, ends);
  int64_t size = 0;
  int drawn = 0;
  for (; drawn < count && size <= kDrawGroup; ++drawn) {
    const int64_t end = RowEvents(draw, first + drawn, limit, scratch, size);
    if (end < 0) break;
    scratch.row_begin[drawn] = size;
    scratch.row_events[drawn] = end - size;
    size = (end + 15) / 16 * 16;
  }
  FindKeys(draw, scratch, size);
  const auto judge = draw.keys.certificates != nullptr ? JudgeByBounds<true> : JudgeByBounds<false>;
  JudgeOpen(draw, first, judge(draw, first, drawn, scratch), scratch);
  TakeAccepted(drawn, scratch, ends);
  return drawn;
}

// Lanes of squares of a row.
EDGEWISE_INLINE F SquareLanes(const float* row, int rank) {
  F sum = Zero();
  for (int t = 0; t < rank; t += 16) {
    const F part = Load(row + t);
    sum = Fma(part, part, sum);
  }
  return sum;
}

// 16 rows at a time, summed as DotRows16 does.
static void SquareNorms(const float* rows, int64_t count, int rank, float* out) {
  for (int64_t first = 0; first < count; first += 16) {
    const int64_t last = count - 1;
    F sum[16];
    for (int r = 0; r < 16; ++r) sum[r] = SquareLanes(rows + (first + r < last ? first + r : last) * rank, rank);
    F four[4];
    for (int s = 0; s < 4; ++s) four[s] = Halve4(Halve8(sum[s], sum[s + 4]), Halve8(sum[s + 8], sum[s + 12]));
    StoreFirst(out + first, Halve1(Halve2(four[0], four[1]), Halve2(four[2], four[3])),
               count - first < 16 ? static_cast<int>(count - first) : 16);
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EVENTS_AVX512_INL_
