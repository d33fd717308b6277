// The mean number of edges of rows of pairs. Every pair costs an inner product, so that keys are read once for many
// rows: a few tiles of them from the fastest cache, and each number of a tile for as many rows as registers hold.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_EXPECTED_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_EXPECTED_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/rates.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Bits of positions in TilePlace order: the transpose of 4 x 4 nibbles.
EDGEWISE_INLINE uint64_t TileBits(uint64_t bits) {
  uint64_t change = (bits >> 12 ^ bits) & 0x0000F0F00000F0F0;
  bits ^= change ^ change << 12;
  change = (bits >> 24 ^ bits) & 0x00000000FF00FF00;
  return bits ^ change ^ change << 24;
}

// Adds the pairs of x [kRows, rank] and the words first..end - 1.
template <int kRows, bool kPoisson>
static void AddExpected(const DrawTables& tables, const float* x, int64_t first, int64_t end, double* sums) {
  constexpr int kColumns = kScoreVectors * kLanes;
  const int rank = tables.rank;
  F total[kRows];
  for (F& sum : total) sum = Zero();
  for (int64_t word = first; word < end; ++word) {
    const uint64_t valid = TileBits(tables.valid[word]);
    if (valid == 0) continue;
    for (int column = 0; column < 64; column += kColumns) {
      const float* const tile = tables.y_tiles + word * rank * 64 + column;
      F s[kRows][kScoreVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kScoreVectors; ++c) s[r][c] = Zero();
      }
      for (int t = 0; t < rank; ++t) {
        F key[kScoreVectors];
        for (int c = 0; c < kScoreVectors; ++c) key[c] = Load(tile + t * 64 + c * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const F query = Broadcast(x[r * rank + t]);
          for (int c = 0; c < kScoreVectors; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kScoreVectors; ++c) {
          F p = Min(Max(s[r][c], Zero()) + Broadcast(tables.exploration), Broadcast(1.0f));
          if (kPoisson) p = PoissonChance(p);
          if (valid != ~uint64_t{0}) p = Select(static_cast<uint32_t>(valid >> (column + c * kLanes)), p, Zero());
          total[r] = total[r] + p;
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) sums[r] += static_cast<double>(ReduceAdd(total[r]));
}

template <bool kPoisson>
static void ExpectedRowsOf(const DrawTables& tables, const float* x, int count, double* sums) {
  constexpr int64_t kNear = 8192;  // numbers of keys that stay in the fastest cache
  const int64_t fit = kNear / (int64_t{64} * tables.rank), step = fit > 1 ? fit : 1;
  for (int r = 0; r < count; ++r) sums[r] = 0.0;
  for (int64_t word = 0; word < tables.words; word += step) {
    const int64_t end = word + step < tables.words ? word + step : tables.words;
    int r = 0;
    for (; r + kScoreRows <= count; r += kScoreRows) {
      AddExpected<kScoreRows, kPoisson>(tables, x + r * tables.rank, word, end, sums + r);
    }
    for (; r < count; ++r) AddExpected<1, kPoisson>(tables, x + r * tables.rank, word, end, sums + r);
  }
}

static void ExpectedRows(const DrawTables& tables, const float* x, int count, bool poisson, double* sums) {
  (poisson ? ExpectedRowsOf<true> : ExpectedRowsOf<false>)(tables, x, count, sums);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_EXPECTED_INL_
