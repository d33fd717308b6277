// draw_split_avx512.cc in plain C++: included by the files of instruction sets that have no kernel of their own, after
// draw_portable.inl.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Relative error of a chance in float32, and absolute error of those of two and more parallel edges; with room.
inline constexpr float kChanceMargin = 4e-6f;

// P(at least k edges) and P(k edges), k going up from 1.
struct Tail {
  float rate, at_least, exactly;
};

EDGEWISE_INLINE Tail FirstTail(const DrawSpan& span, float rate) {
  if (!span.poisson) return {rate, rate, 0.0f};
  // (1 - exp(-r)) / r on [0, 1], interpolated; error below 2e-7.
  constexpr float kSeries[] = {-0.00130077496f, 0.00827550484f, -0.0416468493f,
                               0.166663403f,    -0.499999797f,  0.999999998f};
  float p = 0.00012907631f;
  for (float term : kSeries) p = p * rate + term;
  const float any = rate * p;
  return {rate, any, rate * (1.0f - any)};
}
EDGEWISE_INLINE void NextTail(Tail& tail, int k) {
  tail.at_least -= tail.exactly;
  tail.exactly *= tail.rate / static_cast<float>(k);
}

// Multiplicity of a pair with u in [bottom, top], or -1 where more is possible than is sure.
EDGEWISE_INLINE int Settle(const DrawSpan& span, float rate, float bottom, float top) {
  Tail high = FirstTail(span, rate * span.high);
  Tail low = span.low < span.high ? FirstTail(span, rate * span.low) : high;
  if (!(top < low.at_least * (1.0f - kChanceMargin))) {
    return bottom <= high.at_least * (1.0f + kChanceMargin) ? -1 : 0;
  }
  if (!span.parallel) return 1;
  for (int k = 2;; ++k) {
    NextTail(high, k);
    NextTail(low, k);
    if (top < low.at_least * (1.0f - kChanceMargin) - kChanceMargin) continue;
    return bottom <= high.at_least * (1.0f + kChanceMargin) + kChanceMargin ? -1 : k - 1;
  }
}

static int64_t SplitOneRow(const DrawTables& tables, const DrawSpan& span, const DrawRow& row,
                           const DrawScratch& scratch, int32_t* positions, int32_t block_row, SplitLists& lists) {
  const int64_t size = Scan(tables, row, span.high, scratch.column, scratch.byte);
  int64_t edges = 0;
  float rates[16];
  for (int64_t e = 0; e < size; ++e) {
    if (e % 16 == 0) {
      Rates(tables, row.x, scratch.column + e, size - e < 16 ? static_cast<int>(size - e) : 16, rates);
    }
    const float rate = rates[e % 16];
    const auto byte = static_cast<float>(scratch.byte[e]);
    const auto key = static_cast<int32_t>(scratch.column[e]);
    int count = Settle(span, rate, byte / 256.0f, (byte + 1.0f) / 256.0f);
    if (count < 0) {
      const uint64_t uniform =
          static_cast<uint64_t>(scratch.byte[e]) << 32 | LowWordOf(tables, row.position, scratch.column[e]);
      const float u = static_cast<float>(uniform) / 1099511627776.0f;
      count = Settle(span, rate, u, u);
      if (count < 0) lists.open[lists.opens++] = {block_row, key, rate, false, uniform};
    }
    if (count > 1) lists.parallel[lists.parallels++] = {block_row, key, count};
    positions[edges] = key;
    edges += count > 0 ? 1 : 0;
  }
  return edges;
}

static int SplitRows(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int,
                     const DrawScratch& scratch, int32_t* positions, int64_t* ends, int32_t first_row,
                     SplitLists& lists) {
  ends[0] = SplitOneRow(tables, span, rows[0], scratch, positions, first_row, lists);
  return 1;
}

static void SplitTile(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                      const DrawScratch& scratch, uint64_t* bits, int32_t first_row, SplitLists& lists) {
  int32_t* positions = reinterpret_cast<int32_t*>(scratch.tie);
  for (int r = 0; r < count; ++r) {
    const int64_t edges = SplitOneRow(tables, span, rows[r], scratch, positions, first_row + r, lists);
    uint64_t* row_bits = bits + r * tables.words;
    for (int64_t word = 0; word < tables.words; ++word) row_bits[word] = 0;
    for (int64_t e = 0; e < edges; ++e) row_bits[positions[e] / 64] |= uint64_t{1} << (positions[e] % 64);
  }
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
