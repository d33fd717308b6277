// Drawing rows that hold many edges, with AVX-512: p~ of 6 rows x 64 columns from a register tile, then one byte
// decides all but about one pair in a hundred, which are decided exactly. Same graph as draw_avx512.inl, which comes
// first.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// scaled[r] . tile column c, in four vectors of TilePlace order for each of 6 rows. x256 [6, rank].
struct RateTile {
  F rate[kTileRows][4];
};
EDGEWISE_INLINE void MultiplyTile(const float* x256, int rank, const float* tile, RateTile& out) {
  F s[kTileRows][4];
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < 4; ++c) s[r][c] = Zero();
  }
  for (int t = 0; t < rank; ++t) {
    F key[4];
    for (int c = 0; c < 4; ++c) key[c] = Load(tile + t * 64 + c * 16);
    for (int r = 0; r < kTileRows; ++r) {
      const F query = Broadcast(x256[r * rank + t]);
      for (int c = 0; c < 4; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < 4; ++c) out.rate[r][c] = s[r][c];
  }
}

// min(255, floor(256 p~ - epsilon)) as bytes in column order.
EDGEWISE_INLINE V FloorBytes(const F* rate, F shift) {
  V whole[4];
  for (int c = 0; c < 4; ++c) whole[c] = _mm512_cvttps_epi32(_mm512_max_ps(rate[c], Zero()) + shift);
  // Signed saturation twice: from below to 0, from above to 255.
  return _mm512_packus_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
}

static void DrawTile(const DrawTables& tables, const DrawRow* rows, int count, const DrawScratch& scratch,
                     uint64_t* bits) {
  const int rank = tables.rank;
  float x256[kTileRows * kMaxRank];
  float epsilon[kTileRows];
  QueryWords query[kTileRows];
  const int64_t stride = tables.words * 64 + 64;  // room of a row's candidates: a multiple of 16
  int64_t size[kTileRows] = {};
  for (int r = 0; r < kTileRows; ++r) {
    const DrawRow& row = rows[r < count ? r : 0];
    float square = 0.0f;
    for (int t = 0; t < rank; ++t) {
      x256[r * rank + t] = 256.0f * row.x[t];
      square += row.x[t] * row.x[t];
    }
    epsilon[r] = TileEpsilon(rank, __builtin_sqrtf(square) * tables.key_norm);
    query[r] = MixQuery(tables, row.position);
  }
  RoundKeys keys;
  FillRoundKeys(tables, keys);
  const V order = _mm512_load_si512(kByteOrder);
  const V one = _mm512_set1_epi8(1);
  for (int64_t word = 0; word < tables.words; word += 2) {
    V bytes[kTileRows][2];
    const uint64_t* table = tables.philox + word * 16;
    const uint64_t* chains[3] = {table, table, table};
    HighBytes<3>(chains, query, keys, order, bytes[0]);
    HighBytes<3>(chains, query + 3, keys, order, bytes[3]);
    for (int half = 0; half < 2; ++half) {
      RateTile tile;
      MultiplyTile(x256, rank, tables.y_tiles + (word + half) * rank * 64, tile);
      const uint64_t valid = tables.valid[word + half];
      for (int r = 0; r < count; ++r) {
        const V floor = FloorBytes(tile.rate[r], Broadcast(256.0f * tables.exploration - epsilon[r]));
        const uint64_t sure = _mm512_mask_cmplt_epu8_mask(valid, bytes[r][half], floor);
        const uint64_t maybe = _mm512_mask_cmple_epu8_mask(valid & ~sure, bytes[r][half], _mm512_adds_epu8(floor, one));
        bits[r * tables.words + word + half] = sure;
        size[r] = Append(maybe, _mm512_set1_epi32(static_cast<int>(word + half) * 64), bytes[r][half],
                         scratch.column + r * stride, scratch.byte + r * stride, size[r]);
      }
    }
  }
  for (int r = 0; r < count; ++r) {
    const int64_t begin = r * stride;
    const int64_t end = EndRow(scratch, r, begin, begin + size[r]);
    DecideAny(tables, rows, scratch, begin / 16, end / 16);
    for (int64_t b = begin / 16; b < end / 16; ++b) {
      for (uint32_t accept = Accepted(scratch, b); accept != 0; accept &= accept - 1) {
        const uint32_t column = scratch.column[16 * b + __builtin_ctz(accept)];
        bits[r * tables.words + column / 64] |= uint64_t{1} << (column % 64);
      }
    }
  }
}

// Sum over valid positions of p (kind 0) or 1 - exp(-p) (kind 1), by the series of kernels/draw.h in float32.
static double ExpectedRow(const DrawTables& tables, const DrawRow& row, int kind) {
  const int rank = tables.rank;
  double sum = 0.0;
  for (int64_t word = 0; word < tables.words; ++word) {
    F s[4] = {Zero(), Zero(), Zero(), Zero()};
    const float* tile = tables.y_tiles + word * rank * 64;
    for (int t = 0; t < rank; ++t) {
      const F x = Broadcast(row.x[t]);
      for (int c = 0; c < 4; ++c) s[c] = Fma(x, Load(tile + t * 64 + c * 16), s[c]);
    }
    F total = Zero();
    uint64_t valid = tables.valid[word];
    for (int c = 0; c < 4; ++c) {
      F p = _mm512_min_ps(_mm512_max_ps(s[c], Zero()) + Broadcast(tables.exploration), Broadcast(1.0f));
      if (kind == 1) {
        F series = Broadcast(1.0f);
        for (int term = 11; term >= 2; --term)
          series = Broadcast(1.0f) - p * Broadcast(1.0f / static_cast<float>(term)) * series;
        p = p * series;
      }
      // Column of lane l of vector c: 16 (l / 4) + 4 c + l % 4, so these bits are every fourth nibble.
      const uint32_t lanes = static_cast<uint32_t>(_pext_u64(valid, uint64_t{0x000F000F000F000F} << (4 * c)));
      total = total + Select(lanes, p, Zero());
    }
    sum += static_cast<double>(ReduceAdd(total));
  }
  return sum;
}

static int64_t CountBits(const uint64_t* bits, int64_t words) {
  int64_t count = 0;
  for (int64_t word = 0; word < words; ++word) count += _mm_popcnt_u64(bits[word]);
  return count;
}

// Set bits as numbers from `first` on, ascending. Room for 64 more than there are.
static int64_t ListBits(const uint64_t* bits, int64_t words, int32_t first, int32_t* out) {
  int64_t size = 0;
  for (int64_t word = 0; word < words; ++word) {
    const uint64_t mask = bits[word];
    const int count = static_cast<int>(_mm_popcnt_u64(mask));
    const V ids = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kIota));
    const V from = _mm512_set1_epi32(first + static_cast<int>(word * 64));
    _mm512_storeu_si512(out + size, _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(ids))));
    if (count > 16) {
      _mm512_storeu_si512(out + size + 16,
                          _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 1))));
      if (count > 32) {
        _mm512_storeu_si512(out + size + 32,
                            _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 2))));
        _mm512_storeu_si512(out + size + 48,
                            _mm512_add_epi32(from, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(ids, 3))));
      }
    }
    size += count;
  }
  return size;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
