// Attention of a block of query rows by dense tiles of 64 keys, edges given as masks. Included by the file of each
// instruction set after its simd_*.h.
//
// A strip of 12 rows passes over one tile at a time: scores (6 rows x 64 keys in registers), weights, weighted sum of
// values. A strip whose mask is empty in a tile is skipped, which changes no bit: it would add zeros.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kStripRows = 2 * kScoreRows;
inline constexpr int kTileVectors = kTileKeys / kLanes;
inline constexpr float kLowest = -3.0e38f;  // below every score, and its differences are finite

// tile [depth, 64] from up to 64 keys of `columns` elements; zeros beyond.
static void PackKeyTile(const float* k, int64_t stride, int count, int columns, int depth, float* tile) {
  int first = 0;
#if defined(EDGEWISE_HAS_TRANSPOSE16)
  for (; count == kTileKeys && first + 16 <= columns; first += 16) {
    for (int key = 0; key < kTileKeys; key += 16) {
      F rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) rows[i] = Load(k + (key + i) * stride + first);
      Transpose16(rows);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) Store(tile + (first + i) * kTileKeys + key, rows[i]);
    }
  }
#endif
  for (int t = first; t < depth; ++t) {
    for (int key = 0; key < kTileKeys; ++key) {
      tile[t * kTileKeys + key] = key < count && t < columns ? k[key * stride + t] : 0.0f;
    }
  }
}

// scores[r][c] = <q[r], tile column c> for kScoreRows rows and kScoreVectors vectors of columns.
EDGEWISE_INLINE void ScoreTile(const float* q, int depth, const float* tile, float* scores) {
  F s[kScoreRows][kScoreVectors];
  for (int r = 0; r < kScoreRows; ++r) {
    for (int c = 0; c < kScoreVectors; ++c) s[r][c] = Zero();
  }
  for (int t = 0; t < depth; ++t) {
    F key[kScoreVectors];
    for (int c = 0; c < kScoreVectors; ++c) key[c] = Load(tile + t * kTileKeys + c * kLanes);
    for (int r = 0; r < kScoreRows; ++r) {
      const F query = Broadcast(q[r * depth + t]);
      for (int c = 0; c < kScoreVectors; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kScoreRows; ++r) {
    for (int c = 0; c < kScoreVectors; ++c) Store(scores + r * kTileKeys + c * kLanes, s[r][c]);
  }
}

// sums[r] += sum over keys of weights[r][key] * v[key], for kRows rows and kVectors vectors of columns.
template <int kRows, int kVectors>
EDGEWISE_INLINE void AddValues(const float* weights, const float* v, int64_t v_stride, int count, float* sums,
                               int depth) {
  F sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) sum[r][c] = Load(sums + r * depth + c * kLanes);
  }
  for (int key = 0; key < count; ++key) {
    F value[kVectors];
    for (int c = 0; c < kVectors; ++c) value[c] = Load(v + key * v_stride + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F weight = Broadcast(weights[r * kTileKeys + key]);
      for (int c = 0; c < kVectors; ++c) sum[r][c] = Fma(weight, value[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) Store(sums + r * depth + c * kLanes, sum[r][c]);
  }
}

// Turns one row of scores into weights under the row's running maximum; rescales what was summed when that grows.
EDGEWISE_INLINE void WeighRow(uint64_t mask, float* scores, float* sums, int depth, float* weight_sum, float* max) {
  F s[kTileVectors];
  for (int c = 0; c < kTileVectors; ++c) {
    s[c] = Select(static_cast<uint32_t>(mask >> (c * kLanes)), Load(scores + c * kLanes), Broadcast(kLowest));
  }
  F top = s[0];
  for (int c = 1; c < kTileVectors; ++c) top = Max(top, s[c]);
  if (AnyGreater(top, Broadcast(*max))) {
    const float grown = ReduceMax(top);
    const F shrink = Exp2(Broadcast(*max - grown));
    *max = grown;
    for (int t = 0; t < depth; t += kLanes) Store(sums + t, Load(sums + t) * shrink);
    Store(weight_sum, Load(weight_sum) * shrink);
  }
  const F unit = Broadcast(*max);
  F total = Zero();
  for (int c = 0; c < kTileVectors; ++c) {
    const F weight = Select(static_cast<uint32_t>(mask >> (c * kLanes)), Exp2(s[c] - unit), Zero());
    Store(scores + c * kLanes, weight);
    total = total + weight;
  }
  Store(weight_sum, Load(weight_sum) + total);
}

EDGEWISE_INLINE void AddStripValues(const float* weights, const AttendBlock& block, int64_t first_key, int count,
                                    float* sums) {
  const int depth = block.depth;
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) {
    const float* v = block.v + first_key * block.v_stride + t;
    AddValues<kScoreRows, 4>(weights, v, block.v_stride, count, sums + t, depth);
    AddValues<kScoreRows, 4>(weights + kScoreRows * kTileKeys, v, block.v_stride, count, sums + kScoreRows * depth + t,
                             depth);
  }
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) {
    AddValues<kStripRows, 2>(weights, block.v + first_key * block.v_stride + t, block.v_stride, count, sums + t, depth);
  }
  for (; t < depth; t += kLanes) {
    AddValues<kStripRows, 1>(weights, block.v + first_key * block.v_stride + t, block.v_stride, count, sums + t, depth);
  }
}

static void AttendDense(const AttendBlock& block) {
  const int depth = block.depth;
  float* packed = block.scratch;                        // [depth, 64] when keys come unpacked
  float* scores = packed + depth * kTileKeys;           // [12, 64]
  float* weight_sum = scores + kStripRows * kTileKeys;  // [96, kLanes]
  const int strips = (block.rows + kStripRows - 1) / kStripRows;
  for (int i = 0; i < strips * kStripRows * depth; ++i) block.sums[i] = 0.0f;
  for (int i = 0; i < strips * kStripRows * kLanes; ++i) weight_sum[i] = 0.0f;
  for (int r = 0; r < strips * kStripRows; ++r) block.max_score[r] = kLowest;
  for (int64_t first_key = 0; first_key < block.keys; first_key += kTileKeys) {
    const int64_t left = block.keys - first_key;
    const int count = left < kTileKeys ? static_cast<int>(left) : kTileKeys;
    const uint64_t present = ~uint64_t{0} >> (kTileKeys - count);
    const float* tile = packed;
    if (block.k_tiles != nullptr) {
      tile = block.k_tiles + first_key * depth;
    } else {
      PackKeyTile(block.k + first_key * block.k_stride, block.k_stride, count, depth, depth, packed);
    }
    for (int strip = 0; strip < strips; ++strip) {
      const int row0 = strip * kStripRows;
      const int rows = block.rows - row0 < kStripRows ? block.rows - row0 : kStripRows;
      uint64_t mask[kStripRows] = {};
      uint64_t any = 0;
      for (int r = 0; r < rows; ++r) {
        mask[r] = block.bits == nullptr ? present : block.bits[(row0 + r) * block.bit_words + first_key / kTileKeys];
        any |= mask[r];
      }
      if (any == 0) continue;
      for (int half = 0; half < kStripRows; half += kScoreRows) {
        for (int c = 0; c < kTileKeys; c += kScoreVectors * kLanes) {
          ScoreTile(block.q + (row0 + half) * depth, depth, tile + c, scores + half * kTileKeys + c);
        }
      }
      for (int r = 0; r < kStripRows; ++r) {
        WeighRow(mask[r], scores + r * kTileKeys, block.sums + (row0 + r) * depth, depth,
                 weight_sum + (row0 + r) * kLanes, block.max_score + row0 + r);
      }
      AddStripValues(scores, block, first_key, count, block.sums + row0 * depth);
    }
  }
  for (int r = 0; r < block.rows; ++r) block.weight_sum[r] = ReduceAdd(Load(weight_sum + r * kLanes));
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
