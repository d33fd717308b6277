// Drawing edges with AVX-512: exactly the graph of kernels/draw.h. Included by attention_avx512.cc
// after draw_philox_avx512.inl.
//
// Most pairs are settled by one random byte against a bound: 64 columns a step. Pairs that pass it get their exact p,
// 16 at a time; only when the byte equals floor(256 p) is the low word of the uniform drawn, 16 at a time as well.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

alignas(64) static const uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                              16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                              32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                              48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

// Appends `from` + the places of the set bits of `mask`, and their bytes. No branch on what is rare: compresses go to
// registers, whole vectors are stored and the end moves on.
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

// What a row is tested with: in units of 2^-16, t = a * c + margin, rounded up; where bounds exceed 1, in units of
// 2^(shift - 16).
struct RowTest {
  V a, margin, limit, shift;
  bool shifted;
  bool lifted;  // the margin is in the keys' numbers already
};

EDGEWISE_INLINE RowTest MakeTest(const DrawTables& tables, const DrawRow& row, float tau) {
  const float top = tau * row.bound * tables.key_scale;
  int shift = 0;
  while (shift < 7 && !(top <= 0.9f * static_cast<float>(1 << shift))) ++shift;
  const float unit = 65536.0f / static_cast<float>(1 << shift);
  const float stretch = 65535.0f / static_cast<float>(65535 - tables.bound_lift);
  const float a = top * unit * stretch * 1.00001f + 2.0f;
  const float margin = tau * tables.exploration * unit * 1.00001f + static_cast<float>(kBoundMargin);
  // A row beyond what 16 bits hold: everything is a candidate.
  const bool all = !(a < 65536.0f) || !(margin < 65536.0f);
  RowTest test;
  test.a = _mm512_set1_epi16(static_cast<short>(all ? 65535 : static_cast<int>(a < 65535.0f ? a : 65535.0f)));
  test.margin = _mm512_set1_epi16(static_cast<short>(all ? 65535 : static_cast<int>(margin)));
  test.limit = _mm512_set1_epi16(static_cast<short>(65535 >> shift));
  test.shift = _mm512_set1_epi16(static_cast<short>(shift));
  test.shifted = shift != 0;
  test.lifted = !all && shift == 0 && tables.exploration == 0.0f &&
                (a - 1.0f) * static_cast<float>(tables.bound_lift) >= static_cast<float>(kBoundMargin) * 65536.0f;
  return test;
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
  // Bytes of column order: the high one of `even` below the high one of `odd`.
  const V limit =
      _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, _mm512_set1_epi16(static_cast<short>(0xFF00)),
                                0xF8);  // a | (b & c)
  return full ? _mm512_cmple_epu8_mask(bytes, limit) : _mm512_mask_cmple_epu8_mask(valid, bytes, limit);
}

template <bool kShifted, bool kLifted>
static int64_t ScanRow(const DrawTables& tables, const DrawRow& row, const RowTest& test, uint32_t* column,
                       uint8_t* byte, int64_t size) {
  const V order = _mm512_load_si512(kByteOrder);
  const QueryWords query = MixQuery(tables, row.position);
  RoundKeys keys;
  FillRoundKeys(tables, keys);
  V from = _mm512_setzero_si512();
  const auto take = [&](int64_t word, bool full, V bytes) __attribute__((always_inline)) {
    const uint64_t mask =
        Passes<kShifted, kLifted>(test, tables.bound + word * 64, full ? 0 : tables.valid[word], full, bytes);
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

// Pairs whose byte is at most floor(256 * min(1, tau * bound)): all edges of the row and few others. Appends to
// `column` and `byte` from `size` on and returns the new size.
static int64_t Scan(const DrawTables& tables, const DrawRow& row, float tau, uint32_t* column, uint8_t* byte,
                    int64_t size) {
  const RowTest test = MakeTest(tables, row, tau);
  if (test.shifted) return ScanRow<true, false>(tables, row, test, column, byte, size);
  return test.lifted ? ScanRow<false, true>(tables, row, test, column, byte, size)
                     : ScanRow<false, false>(tables, row, test, column, byte, size);
}

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

// Ends a row's candidates: fills up to the next multiple of 16 (at least one batch), and notes the row and the lanes
// that count of its batches. Returns where the next row begins.
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

// Decides batches first..last-1 of candidates under law bernoulli: u < p with u = (byte + low / 2^32) / 256. A byte per
// candidate in `accept`, its high bit set for an edge. Rows are taken together and nothing branches on what was drawn:
// every pass runs at the speed of its arithmetic.
template <int kVectors>
static void Decide(const DrawTables& tables, const DrawRow* rows, const DrawScratch& scratch, int64_t first,
                   int64_t last) {
  const V iota = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(kIota)));
  int64_t ties = 0;
  for (int64_t b = first; b < last; ++b) {
    const DrawRow& row = rows[scratch.batch_row[b]];
    const int64_t e = 16 * b;
    const F rates = Rates<kVectors>(tables, LoadOperand<kVectors>(row.x), scratch.column + e);
    const F scaled = rates * Broadcast(256.0f);
    const F whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const F bytes =
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.byte + e))));
    const __mmask16 less = _mm512_cmp_ps_mask(bytes, whole, _CMP_LT_OQ);
    const __mmask16 tie = _mm512_mask_cmp_ps_mask(scratch.batch_lanes[b], bytes, whole, _CMP_EQ_OQ);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.accept + e), _mm_movm_epi8(less));
    // low < fraction * 2^32, and low is whole: low < the ceiling. All exact: p has 24 significant bits.
    const V limit = _mm512_cvt_roundps_epu32((scaled - whole) * Broadcast(4294967296.0f),
                                             _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const V index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(e)), iota);
    _mm512_storeu_si512(scratch.tie + ties, _mm512_maskz_compress_epi32(tie, index));
    _mm512_storeu_si512(scratch.tie_low + ties, _mm512_maskz_compress_epi32(tie, limit));
    _mm512_storeu_si512(scratch.tie_query + ties, _mm512_set1_epi32(static_cast<int>(row.position)));
    ties += _mm_popcnt_u32(tie);
  }
  // Lanes beyond the ties point at the place after the last candidate of all.
  _mm512_storeu_si512(scratch.tie + ties, _mm512_set1_epi32(static_cast<int>(scratch.capacity)));
  for (int64_t t = 0; t < ties; t += 16) {
    const V keys = _mm512_i32gather_epi32(_mm512_loadu_si512(scratch.tie + t), scratch.column, 4);
    const V low = LowWords(tables, _mm512_loadu_si512(scratch.tie_query + t), keys);
    const __mmask16 edges = _mm512_cmplt_epu32_mask(low, _mm512_loadu_si512(scratch.tie_low + t));
    alignas(16) uint8_t accept[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(accept), _mm_movm_epi8(edges));
    for (int k = 0; k < 16; ++k) scratch.accept[scratch.tie[t + k]] = accept[k];
  }
}

EDGEWISE_INLINE void DecideAny(const DrawTables& tables, const DrawRow* rows, const DrawScratch& scratch, int64_t first,
                               int64_t last) {
  if (tables.rank == 32) return Decide<2>(tables, rows, scratch, first, last);
  Decide<0>(tables, rows, scratch, first, last);
}

// Which of a batch's candidates are edges.
EDGEWISE_INLINE uint32_t Accepted(const DrawScratch& scratch, int64_t batch) {
  return _mm_movepi8_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scratch.accept + 16 * batch))) &
         scratch.batch_lanes[batch];
}

static int DrawRows(const DrawTables& tables, const DrawRow* rows, int count, const DrawScratch& scratch,
                    int32_t* positions, int64_t* ends) {
  int64_t size = 0;
  int drawn = 0;
  for (; drawn < count && size <= kDrawGroup; ++drawn) {
    const int64_t end = Scan(tables, rows[drawn], 1.0f, scratch.column, scratch.byte, size);
    size = EndRow(scratch, drawn, size, end);
  }
  DecideAny(tables, rows, scratch, 0, size / 16);
  int64_t edges = 0;
  for (int64_t b = 0; b < size / 16; ++b) {
    const uint32_t accept = Accepted(scratch, b);
    _mm512_storeu_si512(positions + edges, _mm512_maskz_compress_epi32(static_cast<__mmask16>(accept),
                                                                       _mm512_loadu_si512(scratch.column + 16 * b)));
    edges += _mm_popcnt_u32(accept);
    ends[scratch.batch_row[b]] = edges;
  }
  return drawn;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
