// Ages and places of the events of query rows with AVX-512.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EVENT_ROWS_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EVENT_ROWS_AVX512_INL_

#include "kernels/cpu/simd/events_shared.inl"
#include "kernels/cpu/simd/philox_avx512.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Low halves of 64-bit lanes: of `even`, and of `odd` behind each.
EDGEWISE_INLINE V Interleave(V even, V odd) {
  return _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, static_cast<_MM_PERM_ENUM>(0xA0));
}

// EventExponential of 16 words.
EDGEWISE_INLINE F Exponentials(V words) {
  const F whole = _mm512_cvtepu32_ps(_mm512_or_si512(words, _mm512_set1_epi32(1)));
  const V bits = _mm512_castps_si512(whole);
  const V exponent = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3F3504F3)), 23);
  const F z = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(exponent, 23))) - Broadcast(1.0f);
  const F z2 = z * z;
  F p = Broadcast(7.0376836292e-2f);
  p = Fma(p, z, Broadcast(-1.1514610310e-1f));
  p = Fma(p, z, Broadcast(1.1676998740e-1f));
  p = Fma(p, z, Broadcast(-1.2420140846e-1f));
  p = Fma(p, z, Broadcast(1.4249322787e-1f));
  p = Fma(p, z, Broadcast(-1.6668057665e-1f));
  p = Fma(p, z, Broadcast(2.0000714765e-1f));
  p = Fma(p, z, Broadcast(-2.4999993993e-1f));
  p = Fma(p, z, Broadcast(3.3333331174e-1f));
  const F log_m = Fma(p * z, z2, Fma(Broadcast(-0.5f), z2, z));
  const F steps = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(32), exponent));
  return _mm512_fmsub_ps(steps, Broadcast(0.69314718056f), log_m);
}

// Sums of the lanes up to each, modulo 2^32.
EDGEWISE_INLINE V PrefixSums(V a) {
  const V zero = _mm512_setzero_si512();
  a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 15));
  a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 14));
  a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 12));
  return _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 8));
}

// Ages and places of a row's events younger than `limit`, from `at` on. Returns the place after the last, or -1 without
// room for them. kChains * 16 events a step: rounds of Philox wait for each other.
template <int kChains>
static int64_t RowEventsOf(const EventDraw& draw, uint32_t query, float mean_gap, uint32_t limit,
                           const EventScratch& scratch, int64_t at) {
  const V blocks = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kIota)));
  const F top = Broadcast(2147483648.0f);
  V base = _mm512_setzero_si512();
  for (uint32_t block = 0;; block += 8 * kChains, at += 16 * kChains) {
    if (at + 16 * kChains > scratch.capacity) return -1;
    Counters c[kChains];
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      c[i] = {_mm512_add_epi64(blocks, Set64(block + 8 * i)), Set64(query), Set64(draw.events_word),
              Set64(draw.sample)};
    }
    uint32_t k0 = draw.seed[0], k1 = draw.seed[1];
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) PhiloxRound(c[i], k0, k1);
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    V ages[kChains];
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      const F gap = Fma(Exponentials(Interleave(c[i].c0, c[i].c2)), Broadcast(mean_gap), Broadcast(0.5f));
      const V age = _mm512_add_epi32(PrefixSums(_mm512_cvttps_epu32(_mm512_min_ps(gap, top))), base);
      base = _mm512_permutexvar_epi32(_mm512_set1_epi32(15), age);
      ages[i] = age;
      _mm512_storeu_si512(scratch.age + at + 16 * i, age);
      _mm512_storeu_si512(scratch.place + at + 16 * i, Interleave(c[i].c1, c[i].c3));
    }
    // After the stores: ThreadSanitizer calls a function for each, and GCC 12 keeps 16 bits of a mask across a call.
    uint64_t young = 0;
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      young |= static_cast<uint64_t>(_mm512_cmplt_epu32_mask(ages[i], _mm512_set1_epi32(static_cast<int>(limit))))
               << (16 * i);
    }
    constexpr uint64_t kAll = ~uint64_t{0} >> (64 - 16 * kChains);
    if (young != kAll) return at + __builtin_ctzll(~young);  // ages beyond the first old one may have wrapped
  }
}

EDGEWISE_INLINE int64_t RowEvents(const EventDraw& draw, int64_t row, uint32_t limit, const EventScratch& scratch,
                                  int64_t at) {
  const float mean_gap = draw.mean_gap[row];
  if (!(mean_gap > 0.0f)) return at;
  const uint32_t query = PositionOf(draw, row);
  const float expected = static_cast<float>(limit) / mean_gap;
  if (expected > 160.0f) return RowEventsOf<4>(draw, query, mean_gap, limit, scratch, at);
  if (expected > 24.0f) return RowEventsOf<2>(draw, query, mean_gap, limit, scratch, at);
  return RowEventsOf<1>(draw, query, mean_gap, limit, scratch, at);
}

// RowEvents of two rows side by side, for rows of fewer than eight events. Returns false, and leaves nothing that
// counts, where a row has as many, may well have, is heavy, or where there is no room.
EDGEWISE_INLINE bool TwoRowsOfEvents(const EventDraw& draw, int64_t row, uint32_t limit, const EventScratch& scratch,
                                     int64_t at, int64_t* ends) {
  constexpr float kMostEvents = 4.0f;
  const float gap0 = draw.mean_gap[row], gap1 = draw.mean_gap[row + 1];
  const float least = gap0 < gap1 ? gap0 : gap1;
  if (!(kMostEvents * least >= static_cast<float>(limit)) || at + 32 > scratch.capacity) return false;
  const V zero = _mm512_setzero_si512();
  Counters c;
  c.c0 = _mm512_and_si512(_mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kIota))), Set64(3));
  c.c1 = _mm512_mask_mov_epi64(Set64(PositionOf(draw, row)), 0xF0, Set64(PositionOf(draw, row + 1)));
  c.c2 = Set64(draw.events_word);
  c.c3 = Set64(draw.sample);
  uint32_t k0 = draw.seed[0], k1 = draw.seed[1];
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1) PhiloxRound(c, k0, k1);
  const F mean_gap = _mm512_mask_mov_ps(Broadcast(gap0), 0xFF00, Broadcast(gap1));
  const F gap = Fma(Exponentials(Interleave(c.c0, c.c2)), mean_gap, Broadcast(0.5f));
  V age = _mm512_cvttps_epu32(_mm512_min_ps(gap, Broadcast(2147483648.0f)));
  age = _mm512_add_epi32(age, _mm512_maskz_alignr_epi32(0xFEFE, age, zero, 15));
  age = _mm512_add_epi32(age, _mm512_maskz_alignr_epi32(0xFCFC, age, zero, 14));
  age = _mm512_add_epi32(age, _mm512_maskz_alignr_epi32(0xF0F0, age, zero, 12));
  const uint32_t old = ~static_cast<uint32_t>(_mm512_cmplt_epu32_mask(age, _mm512_set1_epi32(static_cast<int>(limit))));
  if ((old & 0xFF) == 0 || (old & 0xFF00) == 0) return false;
  const V place = Interleave(c.c1, c.c3);
  ends[0] = at + __builtin_ctz(old);
  ends[1] = ends[0] + __builtin_ctz(old >> 8);
  _mm512_storeu_si512(scratch.age + at, age);
  _mm512_storeu_si512(scratch.place + at, place);
  _mm512_storeu_si512(scratch.age + ends[0], _mm512_shuffle_i64x2(age, age, 0x4E));
  _mm512_storeu_si512(scratch.place + ends[0], _mm512_shuffle_i64x2(place, place, 0x4E));
  return true;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EVENT_ROWS_AVX512_INL_
