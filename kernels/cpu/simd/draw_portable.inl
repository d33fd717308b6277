// Drawing edges in plain C++: the graph of kernels/draw/draw.h, bit for bit, in the steps of draw_avx512.inl.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_DRAW_PORTABLE_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_DRAW_PORTABLE_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_words.inl"
#include "kernels/cpu/simd/rates.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Philox4x32-10 on 16 counters at once, in loops that the compiler vectorises.
struct PhiloxLanes {
  uint32_t c0[16], c1[16], c2[16], c3[16];
};
EDGEWISE_INLINE void MixLanes(const uint32_t* seed, PhiloxLanes& c) {
  uint32_t k0 = seed[0], k1 = seed[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int l = 0; l < 16; ++l) {
      const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c.c0[l];
      const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c.c2[l];
      c.c0[l] = static_cast<uint32_t>(product1 >> 32) ^ c.c1[l] ^ k0;
      c.c1[l] = static_cast<uint32_t>(product1);
      c.c2[l] = static_cast<uint32_t>(product0 >> 32) ^ c.c3[l] ^ k1;
      c.c3[l] = static_cast<uint32_t>(product0);
    }
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
}

// High bytes of 64 * words positions, 256 at most, from `first` on, a multiple of 64; each 64 in BoundPlace order.
EDGEWISE_INLINE void HighBytes256(const DrawTables& tables, uint32_t query, uint32_t first, int words, uint8_t* bytes) {
  PhiloxLanes c;
  for (int l = 0; l < 16; ++l) {
    c.c0[l] = first / 16 + static_cast<uint32_t>(l);
    c.c1[l] = query;
    c.c2[l] = tables.bytes_word;
    c.c3[l] = tables.sample;
  }
  MixLanes(tables.seed, c);
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  const uint32_t* drawn[4] = {c.c0, c.c1, c.c2, c.c3};
  for (int word = 0; word < words; ++word) {
    for (int w = 0; w < 4; ++w) {  // of blocks 4J + t; byte 2e + b of a block -> column 64J + 8e + 2t + b
      Bytes blocks;
      __builtin_memcpy(&blocks, drawn[w] + 4 * word, sizeof(Bytes));
      const Bytes sorted =
          __builtin_shufflevector(blocks, blocks, 0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
      const auto* const halves = reinterpret_cast<const uint8_t*>(&sorted);  // of even columns, of odd ones
      __builtin_memcpy(bytes + 64 * word + 8 * w, halves, 8);
      __builtin_memcpy(bytes + 64 * word + 32 + 8 * w, halves + 8, 8);
    }
  }
}

// Bit i of the lower half at place 2i.
EDGEWISE_INLINE uint64_t EveryOtherBit(uint64_t bits) {
  bits &= 0xFFFFFFFF;
  bits = (bits | bits << 16) & 0x0000FFFF0000FFFF;
  bits = (bits | bits << 8) & 0x00FF00FF00FF00FF;
  bits = (bits | bits << 4) & 0x0F0F0F0F0F0F0F0F;
  bits = (bits | bits << 2) & 0x3333333333333333;
  return (bits | bits << 1) & 0x5555555555555555;
}

EDGEWISE_INLINE uint32_t LowWordOf(const DrawTables& tables, uint32_t query, uint32_t position) {
  uint32_t words[4] = {position >> 2, query, tables.low_word, tables.sample};
  MixWords(tables.seed, words);
  return words[position & 3];
}

// Pairs whose byte is at most 256 * min(1, tau * bound), ascending.
EDGEWISE_INLINE int64_t Scan(const DrawTables& tables, const DrawRow& row, float tau, uint32_t* column, uint8_t* byte) {
  const float slope =
      256.0f * 1.00001f * tau * row.bound * tables.key_scale / static_cast<float>(65535 - tables.bound_lift);
  const float base = 256.0f * 1.00001f * tau * tables.exploration + 0.001f;
  int64_t size = 0;
  uint8_t bytes[256];
  for (int64_t first = 0; first < tables.words; first += 4) {
    const int words = tables.words - first < 4 ? static_cast<int>(tables.words - first) : 4;
    HighBytes256(tables, row.position, static_cast<uint32_t>(64 * first), words, bytes);
    for (int word = 0; word < words; ++word) {
      const int64_t begin = 64 * (first + word);
      const uint16_t* const bounds = tables.bound + begin;
      const uint8_t* const drawn = bytes + 64 * word;
      uint64_t above = 0;  // in BoundPlace order
      for (int place = 0; place < 64; place += kLanes) {
        const F limit = Fma(Broadcast(slope), LoadWhole(bounds + place), Broadcast(base));
        above |= static_cast<uint64_t>(GreaterBits(LoadWhole(drawn + place), limit)) << place;
      }
      uint64_t left = tables.valid[first + word] & ~(EveryOtherBit(above) | EveryOtherBit(above >> 32) << 1);
      for (; left != 0; left &= left - 1) {
        const int c = __builtin_ctzll(left);
        column[size] = static_cast<uint32_t>(begin + c);
        byte[size++] = drawn[BoundPlace(c)];
      }
    }
  }
  return size;
}

// rates[k] = p of candidate k of 16.
EDGEWISE_INLINE void Rates(const DrawTables& tables, const float* x, const uint32_t* column, int count, float* rates) {
  int32_t keys[16];
  for (int k = 0; k < 16; ++k) {
    const uint32_t c = column[k < count ? k : 0];
    keys[k] = tables.packed == nullptr ? static_cast<int32_t>(c) : tables.packed[c];
  }
  StoreDots16<0>(LoadOperand<0>(x), tables.rank / 16, tables.y, tables.rank, keys, rates);
  for (int k = 0; k < 16; ++k) {
    const float p = (rates[k] > 0.0f ? rates[k] : 0.0f) + tables.exploration;
    rates[k] = p < 1.0f ? p : 1.0f;
  }
}

EDGEWISE_INLINE bool IsEdge(const DrawTables& tables, uint32_t query, uint32_t position, uint32_t byte, float rate) {
  const float scaled = 256.0f * rate;
  const uint32_t whole = static_cast<uint32_t>(scaled);
  if (byte != whole) return byte < whole;
  const double limit = static_cast<double>(scaled - static_cast<float>(whole)) * 4294967296.0;
  return static_cast<double>(LowWordOf(tables, query, position)) < limit;
}

// Relative error of a chance in float32, and absolute error of the chances of two and more parallel edges; rounded up.
inline constexpr float kChanceMargin = 4e-6f;

// P(at least k edges) and P(k edges), k going up from 1.
struct Tail {
  float rate, at_least, exactly;
};

EDGEWISE_INLINE Tail FirstTail(const DrawSpan& span, float rate) {
  if (!span.poisson) return {rate, rate, 0.0f};
  float p = kChanceSeries[0];
  for (int term = 1; term < 7; ++term) p = p * rate + kChanceSeries[term];
  const float any = rate * p;
  return {rate, any, rate * (1.0f - any)};
}
EDGEWISE_INLINE void NextTail(Tail& tail, int k) {
  tail.at_least -= tail.exactly;
  tail.exactly *= tail.rate / static_cast<float>(k);
}

// Multiplicity of a pair with u in [bottom, top], or -1 where it is not the same for every tau of the span.
EDGEWISE_INLINE int FindMultiplicity(const DrawSpan& span, float rate, float bottom, float top) {
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

template <bool kExact>
static int64_t DrawOneRow(const DrawTables& tables, const DrawSpan& span, const DrawRow& row,
                          const DrawScratch& scratch, int32_t* positions, int32_t block_row, DrawExtras& extras) {
  const int64_t size = Scan(tables, row, span.high, scratch.column, scratch.byte);
  int64_t edges = 0;
  float rates[16];
  for (int64_t e = 0; e < size; ++e) {
    if (e % 16 == 0) {
      Rates(tables, row.x, scratch.column + e, size - e < 16 ? static_cast<int>(size - e) : 16, rates);
    }
    const float rate = rates[e % 16];
    const auto key = static_cast<int32_t>(scratch.column[e]);
    positions[edges] = key;
    if constexpr (kExact) {
      edges += IsEdge(tables, row.position, scratch.column[e], scratch.byte[e], rate) ? 1 : 0;
      continue;
    }
    const auto byte = static_cast<float>(scratch.byte[e]);
    int count = FindMultiplicity(span, rate, byte / 256.0f, (byte + 1.0f) / 256.0f);
    if (count < 0) {
      const uint64_t uniform =
          static_cast<uint64_t>(scratch.byte[e]) << 32 | LowWordOf(tables, row.position, scratch.column[e]);
      const float u = static_cast<float>(uniform) / 1099511627776.0f;
      count = FindMultiplicity(span, rate, u, u);
      if (count < 0) extras.open[extras.opens++] = {block_row, key, rate, false, uniform};
    }
    if (count > 1) extras.parallel[extras.parallels++] = {block_row, key, count};
    edges += count > 0 ? 1 : 0;
  }
  return edges;
}

static constexpr uint32_t (*kSplitKey)(const float*, const float*, int) = nullptr;
static constexpr void (*kCertifyRows)(const float*, int64_t, const float*, int, int, float*, Certificate*,
                                      uint8_t*) = nullptr;
static constexpr void (*kSplitKeys)(const Certificate*, int64_t, int, uint32_t*) = nullptr;
static constexpr uint16_t (*kLowBound)(const float*, const float*, int, float, float) = nullptr;

static int DrawRows(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int,
                    const DrawScratch& scratch, int32_t* positions, int64_t* ends, DrawExtras& extras) {
  const auto draw = span.exact() ? DrawOneRow<true> : DrawOneRow<false>;
  ends[0] = draw(tables, span, rows[0], scratch, positions, extras.first_row, extras);
  return 1;
}

// By rows: tiles of rates pay only where a register file holds them.
static int DrawTile(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                    const DrawScratch& scratch, uint64_t* bits, DrawExtras& extras) {
  const auto draw = span.exact() ? DrawOneRow<true> : DrawOneRow<false>;
  int32_t* positions = reinterpret_cast<int32_t*>(scratch.tie);
  for (int r = 0; r < count; ++r) {
    const int64_t edges = draw(tables, span, rows[r], scratch, positions, extras.first_row + r, extras);
    uint64_t* row_bits = bits + r * tables.words;
    for (int64_t word = 0; word < tables.words; ++word) row_bits[word] = 0;
    for (int64_t e = 0; e < edges; ++e) row_bits[positions[e] / 64] |= uint64_t{1} << (positions[e] % 64);
  }
  return count;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_DRAW_PORTABLE_INL_
