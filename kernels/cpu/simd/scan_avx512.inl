// The scan of a row's pairs with AVX-512: a random byte against 16-bit bounds of p, 64 columns a step. Most pairs are
// rejected; where keys have lower bounds, most edges are accepted as well.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_SCAN_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_SCAN_AVX512_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_avx512.inl"
#include "kernels/cpu/simd/squeeze_avx512.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Appends `from` + the places of the set bits of `mask`, and their bytes. Almost branch-free: whole compressed vectors
// are stored, and the size grows by the count.
EDGEWISE_INLINE int64_t Append(uint64_t mask, V from, V bytes, uint32_t* column, uint8_t* byte, int64_t size) {
  const V ids = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kIota));
  const int count = static_cast<int>(_mm_popcnt_u64(mask));
  _mm512_storeu_si512(byte + size, _mm512_maskz_compress_epi8(mask, bytes));
  _mm512_storeu_si512(column + size, _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(ids))));
  if (__builtin_expect(count > 16, 0)) {
    _mm512_storeu_si512(column + size + 16,
                        _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 1))));
    _mm512_storeu_si512(column + size + 32,
                        _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 2))));
    _mm512_storeu_si512(column + size + 48,
                        _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 3))));
  }
  return size + count;
}

// CpuKernels::low_bound. p >= alpha_x alpha_y - beta_x beta_y >= alpha_x (alpha_y - width * beta_y) of Splits, where
// beta_x is at most width * alpha_x.
static uint16_t LowBound(const float* y, const float* unit, int rank, float width, float scale) {
  const Split split = SplitVector(y, unit, rank);
  const float number = (0.99999f * split.along - width * split.across) / scale * 65535.0f;
  return static_cast<uint16_t>(number > 0.0f ? (number < 65535.0f ? number : 65535.0f) : 0.0f);  // NaN: 0
}

// The test of a row's pairs: t = a * c + margin, rounded up, in units of 2^-16, or 2^(shift - 16) for bounds above 1.
// Where keys have lower bounds too, certain_a * c + certain_margin is rounded down.
struct RowTest {
  V a, margin, limit, shift, certain_a, certain_margin, certain_limit;
  bool shifted;  // or bounds above 1 count as 1 before they are multiplied by tau
  bool lifted;   // the margin is in the keys' numbers already; there is no exploration
};

EDGEWISE_INLINE RowTest MakeTest(const DrawTables& tables, const DrawRow& row, const DrawSpan& span) {
  const float tau = span.high;
  const float top = tau * row.bound * tables.key_scale;
  int shift = 0;
  while (shift < 7 && !(top <= 0.9f * static_cast<float>(1 << shift))) ++shift;
  const float unit = 65536.0f / static_cast<float>(1 << shift);
  const float stretch = 65535.0f / static_cast<float>(65535 - tables.bound_lift);
  const float a = top * unit * stretch * 1.00001f + 2.0f;
  const float margin = tau * tables.exploration * unit * 1.00001f + static_cast<float>(kBoundMargin);
  // Where 16 bits do not suffice, every pair is a candidate.
  const bool all = !(a < 65536.0f) || !(margin < 65536.0f);
  RowTest test;
  test.a = _mm512_set1_epi16(static_cast<short>(all ? 65535 : static_cast<int>(a < 65535.0f ? a : 65535.0f)));
  test.margin = _mm512_set1_epi16(static_cast<short>(all ? 65535 : static_cast<int>(margin)));
  test.limit = _mm512_set1_epi16(static_cast<short>(65535 >> shift));
  test.shift = _mm512_set1_epi16(static_cast<short>(shift));
  test.shifted = shift != 0 || (span.low < 1.0f && !(row.bound * tables.key_scale + tables.exploration <= 1.0f));
  test.lifted = !all && !test.shifted && tables.exploration == 0.0f &&
                (a - 1.0f) * static_cast<float>(tables.bound_lift) >= static_cast<float>(kBoundMargin) * 65536.0f;
  if (tables.low == nullptr) return test;
  const Split split = SplitVector(row.x, tables.unit, tables.rank);
  const float certain = split.across <= tables.low_width * split.along ? split.along * tables.key_scale * unit : 0.0f;
  const auto down = [](float number) { return static_cast<int>(number < 65535.0f ? 0.99999f * number : 65535.0f); };
  test.certain_a = _mm512_set1_epi16(static_cast<short>(down(span.low * certain)));
  test.certain_margin = _mm512_set1_epi16(static_cast<short>(down(span.low * tables.exploration * unit)));
  test.certain_limit = _mm512_set1_epi16(static_cast<short>(down(span.low * 65536.0f) >> shift));
  return test;
}

// Bytes of column order: the high ones of `even` below the high ones of `odd`.
EDGEWISE_INLINE V HighBytesInOrder(V even, V odd) {
  return _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, _mm512_set1_epi16(static_cast<short>(0xFF00)),
                                   0xF8);  // a | (b & c)
}

// Which of 64 positions pass: byte <= floor(256 * min(1, bound)).
template <bool kShifted, bool kLifted>
EDGEWISE_INLINE uint64_t Passes(const RowTest& test, const uint16_t* bound, uint64_t valid, bool full, V bytes) {
  V even = _mm512_mulhi_epu16(test.a, _mm512_loadu_si512(bound));
  V odd = _mm512_mulhi_epu16(test.a, _mm512_loadu_si512(bound + 32));
  if (!kLifted) {
    even = _mm512_adds_epu16(even, test.margin);
    odd = _mm512_adds_epu16(odd, test.margin);
  }
  if (kShifted) {
    even = _mm512_sllv_epi16(_mm512_min_epu16(even, test.limit), test.shift);
    odd = _mm512_sllv_epi16(_mm512_min_epu16(odd, test.limit), test.shift);
    even = _mm512_or_si512(
        even, _mm512_maskz_set1_epi16(_mm512_cmpge_epu16_mask(even, _mm512_sllv_epi16(test.limit, test.shift)), -1));
    odd = _mm512_or_si512(
        odd, _mm512_maskz_set1_epi16(_mm512_cmpge_epu16_mask(odd, _mm512_sllv_epi16(test.limit, test.shift)), -1));
  }
  const V limit = HighBytesInOrder(even, odd);
  return full ? _mm512_cmple_epu8_mask(bytes, limit) : _mm512_mask_cmple_epu8_mask(valid, bytes, limit);
}

// Which of 64 positions are edges by their lower bounds: byte < floor(256 * bound).
template <bool kShifted, bool kLifted>
EDGEWISE_INLINE uint64_t AreCertain(const RowTest& test, const uint16_t* low, uint64_t valid, bool full, V bytes) {
  V even = _mm512_mulhi_epu16(test.certain_a, _mm512_loadu_si512(low));
  V odd = _mm512_mulhi_epu16(test.certain_a, _mm512_loadu_si512(low + 32));
  if (!kLifted) {
    even = _mm512_adds_epu16(even, test.certain_margin);
    odd = _mm512_adds_epu16(odd, test.certain_margin);
  }
  if (kShifted) {
    even = _mm512_sllv_epi16(_mm512_min_epu16(even, test.certain_limit), test.shift);
    odd = _mm512_sllv_epi16(_mm512_min_epu16(odd, test.certain_limit), test.shift);
  }
  const V limit = HighBytesInOrder(even, odd);
  return full ? _mm512_cmplt_epu8_mask(bytes, limit) : _mm512_mask_cmplt_epu8_mask(valid, bytes, limit);
}

// `certain`: [words], gets the edges that lower bounds decide, which are not appended; null: there are no such bounds.
template <bool kShifted, bool kLifted, bool kCertain>
static int64_t ScanRow(const DrawTables& tables, const DrawRow& row, const RowTest& test, uint32_t* column,
                       uint8_t* byte, int64_t size, uint64_t* certain) {
  const V order = _mm512_load_si512(kByteOrder);
  const QueryWords query = MixQuery(tables, row.position);
  RoundKeys keys;
  FillRoundKeys(tables, keys);
  V from = _mm512_setzero_si512();
  const auto take = [&](int64_t word, bool full, V bytes) __attribute__((always_inline)) {
    const uint64_t valid = full ? 0 : tables.valid[word];
    uint64_t mask = Passes<kShifted, kLifted>(test, tables.bound + word * 64, valid, full, bytes);
    if constexpr (kCertain) {
      certain[word] = AreCertain<kShifted, kLifted>(test, tables.low + word * 64, valid, full, bytes);
      mask &= ~certain[word];
    }
    size = Append(mask, from, bytes, column, byte, size);
    from = _mm512_add_epi32(from, _mm512_set1_epi32(64));
  };
  int64_t word = 0;
  V bytes[8];
  if (tables.full_words >= 8) {
    // 512 columns a step: their rounds take turns with the tests of the 512 before, which wait for nothing.
    const QueryWords queries[4] = {query, query, query, query};
    const uint64_t* table = tables.philox;
    const uint64_t* chains[4] = {table, table + 32, table + 64, table + 96};
    HighBytes<4>(chains, queries, keys, order, bytes);
    for (; word + 16 <= tables.full_words; word += 8) {
      table += 128;
      Counters c[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) c[i] = FirstRounds(table + 32 * i, query);
      take(word, true, bytes[0]);
#pragma GCC unroll 7
      for (int round = 0; round < 7; ++round) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) PhiloxRound(c[i], keys.k0[round], keys.k1[round]);
        take(word + 1 + round, true, bytes[1 + round]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) OrderBytes(c[i], order, bytes + 2 * i, bytes + 2 * i + 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) take(word + i, true, bytes[i]);
    word += 8;
  }
  for (; word < tables.words; word += 2) {
    const uint64_t* table = tables.philox + word * 16;
    HighBytes<1>(&table, &query, keys, order, bytes);
    take(word, false, bytes[0]);
    take(word + 1, false, bytes[1]);
  }
  return size;
}

// Pairs whose byte is at most floor(256 * min(1, tau * bound)) for the largest tau: all edges of the row and few
// others. Appends to `column` and `byte` from `size` on and returns the new size.
template <bool kCertain>
static int64_t Scan(const DrawTables& tables, const DrawRow& row, const DrawSpan& span, uint32_t* column, uint8_t* byte,
                    int64_t size, uint64_t* certain) {
  const RowTest test = MakeTest(tables, row, span);
  const auto scan = test.shifted  ? ScanRow<true, false, kCertain>
                    : test.lifted ? ScanRow<false, true, kCertain>
                                  : ScanRow<false, false, kCertain>;
  return scan(tables, row, test, column, byte, size, certain);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_SCAN_AVX512_INL_
