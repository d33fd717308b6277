// Drawing rows that hold many edges, with AVX-512: the graph of draw_avx512.inl. p of 6 rows x 64 columns comes from a
// register tile, with a margin for its rounding; one byte then decides all but about one pair in a hundred, and those
// are decided as draw_avx512.inl does.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_DRAW_TILE_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_DRAW_TILE_AVX512_INL_

#include <algorithm>

#include "kernels/cpu/simd/draw_avx512.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox_avx512.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Products of 6 rows x [6, rank] with 64 columns: per row four vectors in TilePlace order.
struct RateTile {
  F rate[kTileRows][4];
};
EDGEWISE_INLINE void MultiplyTile(const float* x, int rank, const float* tile, RateTile& out) {
  F s[kTileRows][4];
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < 4; ++c) s[r][c] = Zero();
  }
  for (int t = 0; t < rank; ++t) {
    F key[4];
    for (int c = 0; c < 4; ++c) key[c] = Load(tile + t * 64 + c * 16);
    for (int r = 0; r < kTileRows; ++r) {
      const F query = Broadcast(x[r * rank + t]);
      for (int c = 0; c < 4; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < 4; ++c) out.rate[r][c] = s[r][c];
  }
}

// min(255, max(0, floor(max(rate, 0) + shift))) as bytes in column order.
EDGEWISE_INLINE V FloorBytes(const F* rate, F shift) {
  V whole[4];
  for (int c = 0; c < 4; ++c) whole[c] = _mm512_cvttps_epi32(_mm512_max_ps(rate[c], Zero()) + shift);
  // Signed saturation twice: from below to 0, from above to 255.
  return _mm512_packus_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
}

template <bool kExact, bool kPoisson, bool kParallel>
static void DrawTileOf(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                       const DrawScratch& scratch, uint64_t* bits, DrawExtras& extras) {
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
      x[r * rank + t] = kExact ? 256.0f * row.x[t] : row.x[t];
      square += row.x[t] * row.x[t];
    }
    epsilon[r] = TileEpsilon(rank, __builtin_sqrtf(square) * tables.key_norm);
    if (!kExact) epsilon[r] += 3.0f * 256.0f * kChanceMargin;
    query[r] = MixQuery(tables, row.position);
  }
  RoundKeys keys;
  FillRoundKeys(tables, keys);
  const V order = _mm512_load_si512(kByteOrder);
  const F span_low = Broadcast(span.low), span_high = Broadcast(span.high);
  const bool wide = span.low < span.high;
  // In a narrow span no rate has more bytes than these between the certain and the possible.
  constexpr float kFewBytes = 4.0f;
  const float most_epsilon = *std::max_element(epsilon, epsilon + kTileRows);
  const float between = 256.0f * (span.high - span.low) + 2.0f * most_epsilon + 1.01f;
  const bool narrow = !kExact && !kPoisson && between <= kFewBytes;
  const V more = _mm512_set1_epi8(static_cast<char>(narrow ? between : 0.0f));
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
        const V byte = bytes[r][half];
        uint64_t edges, listed;
        if constexpr (kExact) {
          const V floor = FloorBytes(tile.rate[r], Broadcast(256.0f * tables.exploration - epsilon[r]));
          edges = _mm512_mask_cmplt_epu8_mask(valid, byte, floor);
          listed = _mm512_mask_cmple_epu8_mask(valid & ~edges, byte, _mm512_adds_epu8(floor, _mm512_set1_epi8(1)));
        } else if (narrow) {
          F certain[4];
          for (int c = 0; c < 4; ++c) {
            certain[c] = Min(Max(tile.rate[r][c], Zero()) + Broadcast(tables.exploration), Broadcast(1.0f)) *
                         (span_low * Broadcast(256.0f));
          }
          const V floor = FloorBytes(certain, Broadcast(-epsilon[r]));
          edges = _mm512_mask_cmplt_epu8_mask(valid, byte, floor);
          listed = _mm512_mask_cmple_epu8_mask(valid & ~edges, byte, _mm512_adds_epu8(floor, more));
        } else {
          F certain[4], possible[4], several[4];
          for (int c = 0; c < 4; ++c) {
            const F rate = Min(Max(tile.rate[r][c], Zero()) + Broadcast(tables.exploration), Broadcast(1.0f));
            const Tail high = FirstTail(kPoisson, rate * span_high);
            const F any = wide ? FirstTail(kPoisson, rate * span_low).at_least : high.at_least;
            certain[c] = any * Broadcast(256.0f);
            possible[c] = high.at_least * Broadcast(256.0f);
            if (kParallel) several[c] = (high.at_least - high.exactly) * Broadcast(256.0f);
          }
          const F margin = Broadcast(epsilon[r]);
          edges = _mm512_mask_cmplt_epu8_mask(valid, byte, FloorBytes(certain, -margin));
          listed = _mm512_mask_cmple_epu8_mask(valid & ~edges, byte, FloorBytes(possible, margin));
          if (kParallel) listed |= _mm512_mask_cmple_epu8_mask(valid, byte, FloorBytes(several, margin));
        }
        bits[r * tables.words + word + half] = edges & ~listed;
        size[r] = Append(listed, _mm512_set1_epi32(static_cast<int>(word + half) * 64), byte,
                         scratch.column + r * stride, scratch.byte + r * stride, size[r]);
      }
    }
  }
  // Candidates are few: the rows' lists move together, so that all are decided in full batches of ties.
  int64_t end = 0;
  for (int r = 0; r < count; ++r) {
    const int64_t begin = end;
    __builtin_memmove(scratch.column + begin, scratch.column + r * stride,
                      static_cast<size_t>(size[r]) * sizeof(*scratch.column));
    __builtin_memmove(scratch.byte + begin, scratch.byte + r * stride, static_cast<size_t>(size[r]));
    end = EndRow(scratch, r, begin, begin + size[r]);
  }
  Decide<kExact>(tables, span, rows, scratch, 0, end / 16, extras);
  AddListed<kExact>(scratch, 0, end / 16, bits, tables.words, extras);
}

static int DrawTile(const DrawTables& tables, const DrawSpan& span, const DrawRow* rows, int count,
                    const DrawScratch& scratch, uint64_t* bits, DrawExtras& extras) {
  if (tables.low != nullptr && !span.poisson) {
    const auto draw = span.exact() ? DrawCertain<true> : DrawCertain<false>;
    return draw(tables, span, rows, count, scratch, bits, extras);
  }
  const auto draw = span.exact()     ? DrawTileOf<true, false, false>
                    : !span.poisson  ? DrawTileOf<false, false, false>
                    : !span.parallel ? DrawTileOf<false, true, false>
                                     : DrawTileOf<false, true, true>;
  draw(tables, span, rows, count, scratch, bits, extras);
  return count;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_DRAW_TILE_AVX512_INL_
