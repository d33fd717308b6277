// Philox4x32-10 with AVX-512, in the two forms that draws use: high bytes of many key positions of one query, and low
// words of 16 pairs.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_PHILOX_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_PHILOX_AVX512_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vector.h"
#include "kernels/draw/philox.h"  // constants only

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

using V = __m512i;

EDGEWISE_INLINE V Set64(uint64_t a) { return _mm512_set1_epi64(static_cast<long long>(a)); }
EDGEWISE_INLINE V Xor3(V a, V b, V c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// Moves the high halves of 64-bit lanes to the low halves; the new high halves are garbage. Two ways, for two ports.
EDGEWISE_INLINE V HighHalf(V a) { return _mm512_shuffle_epi32(a, static_cast<_MM_PERM_ENUM>(0xF5)); }
EDGEWISE_INLINE V HighHalfShifted(V a) { return _mm512_srli_epi64(a, 32); }

// Philox counters of eight blocks in the low halves of 64-bit lanes. High halves are garbage that the 32-bit multiplier
// does not read.
struct Counters {
  V c0, c1, c2, c3;
};

EDGEWISE_INLINE void PhiloxRound(Counters& c, uint64_t k0, uint64_t k1) {
  const V product0 = _mm512_mul_epu32(c.c0, Set64(kPhiloxMultiplier0));
  const V product1 = _mm512_mul_epu32(c.c2, Set64(kPhiloxMultiplier1));
  c.c0 = Xor3(HighHalf(product1), c.c1, Set64(k0));
  c.c2 = Xor3(HighHalfShifted(product0), c.c3, Set64(k1));
  c.c1 = product1;
  c.c3 = product0;
}

// The query's part of rounds 0 and 1, which joins the columns' part in DrawTables::philox.
struct QueryWords {
  V high, low;
};
EDGEWISE_INLINE QueryWords MixQuery(const DrawTables& tables, uint32_t position) {
  const uint32_t constant = static_cast<uint32_t>(static_cast<uint64_t>(kPhiloxMultiplier1) * tables.bytes_word >> 32);
  const uint32_t word = constant ^ position ^ tables.seed[0];
  const uint64_t product = static_cast<uint64_t>(kPhiloxMultiplier0) * word;
  return {Set64(product >> 32), Set64(product & 0xFFFFFFFFu)};
}

// Round keys 3..9, broadcast by the instructions that use them.
struct RoundKeys {
  uint64_t k0[7], k1[7];
};
EDGEWISE_INLINE void FillRoundKeys(const DrawTables& tables, RoundKeys& keys) {
  for (uint32_t round = 0; round < 7; ++round) {
    keys.k0[round] = tables.seed[0] + (round + 3) * kPhiloxWeyl0;
    keys.k1[round] = tables.seed[1] + (round + 3) * kPhiloxWeyl1;
  }
}

// Rounds 0 to 2 of eight blocks, from their part in DrawTables::philox.
EDGEWISE_INLINE Counters FirstRounds(const uint64_t* table, QueryWords query) {
  const V product =
      _mm512_mul_epu32(_mm512_xor_si512(query.high, _mm512_loadu_si512(table)), Set64(kPhiloxMultiplier1));
  return {_mm512_xor_si512(HighHalf(product), _mm512_loadu_si512(table + 8)), product,
          _mm512_xor_si512(query.low, _mm512_loadu_si512(table + 16)), _mm512_loadu_si512(table + 24)};
}

// Words 0, 1 and words 2, 3 of each block side by side, then blocks 0..3 and 4..7 together, then bytes into place.
EDGEWISE_INLINE void OrderBytes(const Counters& c, V order, V* first, V* second) {
  const __mmask16 odd = 0xAAAA;
  const auto low_to_high = static_cast<_MM_PERM_ENUM>(0xA0);
  const V word01 = _mm512_mask_shuffle_epi32(c.c0, odd, c.c1, low_to_high);
  const V word23 = _mm512_mask_shuffle_epi32(c.c2, odd, c.c3, low_to_high);
  *first = _mm512_permutexvar_epi8(order, _mm512_shuffle_i64x2(word01, word23, 0x44));
  *second = _mm512_permutexvar_epi8(order, _mm512_shuffle_i64x2(word01, word23, 0xEE));
}

// The high bytes of 128 positions for each of kChains pairs of a table and a query, in order: bytes [2 * kChains].
// Chains run side by side, because each round waits for the one before: seven cycles for three instructions.
template <int kChains>
EDGEWISE_INLINE void HighBytes(const uint64_t* const* table, const QueryWords* query, const RoundKeys& keys, V order,
                               V* bytes) {
  Counters c[kChains];
#pragma GCC unroll 4
  for (int i = 0; i < kChains; ++i) c[i] = FirstRounds(table[i], query[i]);
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) PhiloxRound(c[i], keys.k0[round], keys.k1[round]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kChains; ++i) OrderBytes(c[i], order, bytes + 2 * i, bytes + 2 * i + 1);
}

// Column 8e + 2t + b takes byte 2e + b of block t; the first 32 bytes hold words 0, 1 of the four blocks.
alignas(64) static const uint8_t kByteOrder[64] = {
#define EDGEWISE_PAIR(t, byte) \
  (byte < 8 ? 8 * t + byte : 24 + 8 * t + byte), (byte < 8 ? 8 * t + byte : 24 + 8 * t + byte) + 1
#define EDGEWISE_EIGHT(byte) \
  EDGEWISE_PAIR(0, byte), EDGEWISE_PAIR(1, byte), EDGEWISE_PAIR(2, byte), EDGEWISE_PAIR(3, byte)
    EDGEWISE_EIGHT(0),  EDGEWISE_EIGHT(2),  EDGEWISE_EIGHT(4), EDGEWISE_EIGHT(6), EDGEWISE_EIGHT(8),
    EDGEWISE_EIGHT(10), EDGEWISE_EIGHT(12), EDGEWISE_EIGHT(14)
#undef EDGEWISE_EIGHT
#undef EDGEWISE_PAIR
};
// Low words of the uniforms of 16 pairs of positions.
EDGEWISE_INLINE V LowWords(const DrawTables& tables, V queries, V keys) {
  const V block = _mm512_srli_epi32(keys, 2);
  Counters even = {block, queries, Set64(tables.low_word), Set64(tables.sample)};
  Counters odd = {_mm512_srli_epi64(block, 32), _mm512_srli_epi64(queries, 32), even.c2, even.c3};
  uint32_t k0 = tables.seed[0], k1 = tables.seed[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    PhiloxRound(even, k0, k1);
    PhiloxRound(odd, k0, k1);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  const auto low_to_high = static_cast<_MM_PERM_ENUM>(0xA0);
  const V word0 = _mm512_mask_shuffle_epi32(even.c0, 0xAAAA, odd.c0, low_to_high);
  const V word1 = _mm512_mask_shuffle_epi32(even.c1, 0xAAAA, odd.c1, low_to_high);
  const V word2 = _mm512_mask_shuffle_epi32(even.c2, 0xAAAA, odd.c2, low_to_high);
  const V word3 = _mm512_mask_shuffle_epi32(even.c3, 0xAAAA, odd.c3, low_to_high);
  const __mmask16 bit0 = _mm512_test_epi32_mask(keys, _mm512_set1_epi32(1));
  const __mmask16 bit1 = _mm512_test_epi32_mask(keys, _mm512_set1_epi32(2));
  return _mm512_mask_blend_epi32(bit1, _mm512_mask_blend_epi32(bit0, word0, word1),
                                 _mm512_mask_blend_epi32(bit0, word2, word3));
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_PHILOX_AVX512_INL_
