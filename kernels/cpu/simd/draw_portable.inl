// Drawing edges in plain C++: exactly the graph of kernels/draw.h, in the same steps as draw_avx512.inl. Included by
// the files of instruction sets that have no kernel of their own.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Philox4x32-10 on `lanes` counters at once; words[w][lane]. In loops that a compiler turns into vectors.
struct PhiloxLanes {
  uint32_t c0[16], c1[16], c2[16], c3[16];
};
EDGEWISE_INLINE void MixLanes(const DrawTables& tables, PhiloxLanes& c) {
  uint32_t k0 = tables.seed[0], k1 = tables.seed[1];
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

// High bytes of 256 positions from `first`, a multiple of 64.
EDGEWISE_INLINE void HighBytes256(const DrawTables& tables, uint32_t query, uint32_t first, uint8_t* bytes) {
  PhiloxLanes c;
  for (int l = 0; l < 16; ++l) {
    c.c0[l] = first / 16 + static_cast<uint32_t>(l);
    c.c1[l] = query;
    c.c2[l] = tables.bytes_word;
    c.c3[l] = tables.sample;
  }
  MixLanes(tables, c);
  const uint32_t* words[4] = {c.c0, c.c1, c.c2, c.c3};
  for (int l = 0; l < 16; ++l) {  // block 4J + t, byte 2e + b -> column 64J + 8e + 2t + b
    for (int byte = 0; byte < 16; ++byte) {
      bytes[(l >> 2) * 64 + (byte >> 1) * 8 + (l & 3) * 2 + (byte & 1)] =
          static_cast<uint8_t>(words[byte >> 2][l] >> (8 * (byte & 3)));
    }
  }
}

EDGEWISE_INLINE uint32_t LowWordOf(const DrawTables& tables, uint32_t query, uint32_t position) {
  uint32_t c0 = position >> 2, c1 = query, c2 = tables.low_word, c3 = tables.sample;
  uint32_t k0 = tables.seed[0], k1 = tables.seed[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c0;
    const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  const uint32_t words[4] = {c0, c1, c2, c3};
  return words[position & 3];
}

// Pairs whose byte is at most 256 * min(1, tau * bound), ascending.
EDGEWISE_INLINE int64_t Scan(const DrawTables& tables, const DrawRow& row, float tau, uint32_t* column, uint8_t* byte) {
  const float slope =
      256.0f * 1.00001f * tau * row.bound * tables.key_scale / static_cast<float>(65535 - tables.bound_lift);
  const float base = 256.0f * 1.00001f * tau * tables.exploration + 0.001f;
  const int64_t columns = tables.words * 64;
  int64_t size = 0;
  uint8_t bytes[256];
  for (int64_t first = 0; first < columns; first += 256) {
    HighBytes256(tables, row.position, static_cast<uint32_t>(first), bytes);
    const int count = columns - first < 256 ? static_cast<int>(columns - first) : 256;
    for (int i = 0; i < count; ++i) {
      const int64_t c = first + i;
      const float limit = slope * static_cast<float>(tables.bound[(c & ~int64_t{63}) + BoundPlace(c & 63)]) + base;
      column[size] = static_cast<uint32_t>(c);
      byte[size] = bytes[i];
      size += (static_cast<float>(bytes[i]) > limit ? 0 : 1) & static_cast<int>(tables.valid[c / 64] >> (c % 64) & 1);
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

static int64_t DrawOneRow(const DrawTables& tables, const DrawRow& row, const DrawScratch& scratch,
                          int32_t* positions) {
  const int64_t size = Scan(tables, row, 1.0f, scratch.column, scratch.byte);
  int64_t edges = 0;
  float rates[16];
  for (int64_t e = 0; e < size; ++e) {
    if (e % 16 == 0) {
      Rates(tables, row.x, scratch.column + e, size - e < 16 ? static_cast<int>(size - e) : 16, rates);
    }
    positions[edges] = static_cast<int32_t>(scratch.column[e]);
    edges += IsEdge(tables, row.position, scratch.column[e], scratch.byte[e], rates[e % 16]) ? 1 : 0;
  }
  return edges;
}

static int DrawRows(const DrawTables& tables, const DrawRow* rows, int, const DrawScratch& scratch, int32_t* positions,
                    int64_t* ends) {
  ends[0] = DrawOneRow(tables, rows[0], scratch, positions);
  return 1;
}

// Rows by lists: tiles of rates pay only where a register file holds them.
static void DrawTile(const DrawTables& tables, const DrawRow* rows, int count, const DrawScratch& scratch,
                     uint64_t* bits) {
  int32_t* positions = reinterpret_cast<int32_t*>(scratch.tie);
  for (int r = 0; r < count; ++r) {
    const int64_t edges = DrawOneRow(tables, rows[r], scratch, positions);
    for (int64_t word = 0; word < tables.words; ++word) bits[r * tables.words + word] = 0;
    for (int64_t e = 0; e < edges; ++e) {
      bits[r * tables.words + positions[e] / 64] |= uint64_t{1} << (positions[e] % 64);
    }
  }
}

static double ExpectedRow(const DrawTables& tables, const DrawRow& row, int kind) {
  double sum = 0.0;
  for (int64_t word = 0; word < tables.words; ++word) {
    float p[64] = {};
    const float* tile = tables.y_tiles + word * tables.rank * 64;
    for (int t = 0; t < tables.rank; ++t) {
      for (int c = 0; c < 64; ++c) p[c] += row.x[t] * tile[t * 64 + c];
    }
    float total = 0.0f;
    for (int c = 0; c < 64; ++c) {
      float rate = (p[TilePlace(c)] > 0.0f ? p[TilePlace(c)] : 0.0f) + tables.exploration;
      rate = rate < 1.0f ? rate : 1.0f;
      if (kind == 1) {
        float series = 1.0f;
        for (int term = 11; term >= 2; --term) series = 1.0f - rate * (1.0f / static_cast<float>(term)) * series;
        rate = rate * series;
      }
      total += (tables.valid[word] >> c & 1) != 0 ? rate : 0.0f;
    }
    sum += static_cast<double>(total);
  }
  return sum;
}

static int64_t CountBits(const uint64_t* bits, int64_t words) {
  int64_t count = 0;
  for (int64_t word = 0; word < words; ++word) count += __builtin_popcountll(bits[word]);
  return count;
}

// Set bits as numbers from `first` on, ascending. Room for 64 more than there are.
static int64_t ListBits(const uint64_t* bits, int64_t words, int32_t first, int32_t* out) {
  int64_t size = 0;
  for (int64_t word = 0; word < words; ++word) {
    for (uint64_t mask = bits[word]; mask != 0; mask &= mask - 1) {
      out[size++] = first + static_cast<int32_t>(word * 64) + __builtin_ctzll(mask);
    }
  }
  return size;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
