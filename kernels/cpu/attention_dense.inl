// Attention of a block of query rows by dense tiles of 64 keys, edges given as masks or as the first so many of a list.
// Included by the file of each instruction set after its simd_*.h and attention_bias.inl.
//
// A strip of 12 rows passes over one tile at a time: scores (6 rows x 64 keys in registers), weights, weighted sum of
// values. A strip whose mask is empty in a tile is skipped, which changes no bit: it would add zeros.
//
// What a row gets depends on its own keys and their places in the list alone: every score and every element of the sum
// is one chain of operations, whatever rows and columns share its registers.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kStripRows = 2 * kScoreRows;
inline constexpr int kTileVectors = kTileKeys / kLanes;
inline constexpr float kLowest = -3.0e38f;  // below every score, and its differences are finite
// Base-2 logarithm of the largest weight. A row's unit is its highest score so far, and stays so until another is above
// it by more than this: the first tile of a row mostly settles its unit.
inline constexpr float kMostWeight = 8.0f;

// tile [depth, 64] from up to 64 keys of `columns` elements, those of `list` or (null) the first; zeros beyond.
template <bool kListed>
EDGEWISE_INLINE void PackTile(const float* k, int64_t stride, const int32_t* list, int count, int columns, int depth,
                              float* tile) {
  const auto row = [&](int key) { return k + (kListed ? list[key] : key) * stride; };
  int first = 0;
#if defined(EDGEWISE_HAS_TRANSPOSE16)
  const int whole = count / 16 * 16;
  for (; first + 16 <= columns; first += 16) {
    for (int key = 0; key < whole; key += 16) {
      F rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) rows[i] = Load(row(key + i) + first);
      Transpose16(rows);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) Store(tile + (first + i) * kTileKeys + key, rows[i]);
    }
    if (whole == kTileKeys) continue;
    for (int t = first; t < first + 16; ++t) {
      for (int key = whole; key < kTileKeys; ++key) tile[t * kTileKeys + key] = key < count ? row(key)[t] : 0.0f;
    }
  }
#endif
  for (int t = first; t < depth; ++t) {
    for (int key = 0; key < kTileKeys; ++key)
      tile[t * kTileKeys + key] = key < count && t < columns ? row(key)[t] : 0.0f;
  }
}

static void PackKeyTile(const float* k, int64_t stride, int count, int columns, int depth, float* tile) {
  PackTile<false>(k, stride, nullptr, count, columns, depth, tile);
}

// scores[r][c] = <q[r], tile column c> for kRows rows and kVectors vectors of columns.
template <int kRows, int kVectors>
EDGEWISE_INLINE void ScoreTile(const float* q, int depth, const float* tile, float* scores) {
  F s[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) s[r][c] = Zero();
  }
  for (int t = 0; t < depth; ++t) {
    F key[kVectors];
    for (int c = 0; c < kVectors; ++c) key[c] = Load(tile + t * kTileKeys + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F query = Broadcast(q[r * depth + t]);
      for (int c = 0; c < kVectors; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) Store(scores + r * kTileKeys + c * kLanes, s[r][c]);
  }
}

template <int kRows>
static void ScoreRows(const float* q, int depth, const float* tile, int vectors, float* scores) {
  int c = 0;
  for (; c + kScoreVectors <= vectors; c += kScoreVectors) {
    ScoreTile<kRows, kScoreVectors>(q, depth, tile + c * kLanes, scores + c * kLanes);
  }
  tile += c * kLanes;
  scores += c * kLanes;
  if constexpr (kScoreVectors > 2) {
    if (vectors - c == 3) return ScoreTile<kRows, 3>(q, depth, tile, scores);
    if (vectors - c == 2) return ScoreTile<kRows, 2>(q, depth, tile, scores);
  }
  if (vectors - c == 1) ScoreTile<kRows, 1>(q, depth, tile, scores);
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

template <int kRows>
static void AddRowValues(const float* weights, const float* v, int64_t v_stride, int count, float* sums, int depth) {
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) {
    AddValues<kRows, 4>(weights, v + t, v_stride, count, sums + t, depth);
  }
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) {
    AddValues<kRows, 2>(weights, v + t, v_stride, count, sums + t, depth);
  }
  for (; t < depth; t += kLanes) AddValues<kRows, 1>(weights, v + t, v_stride, count, sums + t, depth);
}

// A strip of all its rows, which may share what they load.
static void AddStripValues(const float* weights, const float* v, int64_t v_stride, int count, float* sums, int depth) {
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) {
    AddValues<kScoreRows, 4>(weights, v + t, v_stride, count, sums + t, depth);
    AddValues<kScoreRows, 4>(weights + kScoreRows * kTileKeys, v + t, v_stride, count, sums + kScoreRows * depth + t,
                             depth);
  }
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) {
    AddValues<kStripRows, 2>(weights, v + t, v_stride, count, sums + t, depth);
  }
  for (; t < depth; t += kLanes) AddValues<kStripRows, 1>(weights, v + t, v_stride, count, sums + t, depth);
}

// By the number of rows: a strip of up to 12 goes in halves of up to 6.
using ScoreStep = void (*)(const float*, int, const float*, int, float*);
using ValueStep = void (*)(const float*, const float*, int64_t, int, float*, int);
static constexpr ScoreStep kScoreSteps[] = {nullptr,      ScoreRows<1>, ScoreRows<2>, ScoreRows<3>,
                                            ScoreRows<4>, ScoreRows<5>, ScoreRows<6>};
static constexpr ValueStep kValueSteps[] = {nullptr,         AddRowValues<1>, AddRowValues<2>, AddRowValues<3>,
                                            AddRowValues<4>, AddRowValues<5>, AddRowValues<6>};

// Turns one row of scores into weights under the row's unit; rescales what was summed when that grows.
EDGEWISE_INLINE void WeighRow(uint64_t mask, float* scores, float* sums, int depth, float* weight_sum, float* max) {
  F s[kTileVectors];
  for (int c = 0; c < kTileVectors; ++c) {
    s[c] = Select(static_cast<uint32_t>(mask >> (c * kLanes)), Load(scores + c * kLanes), Broadcast(kLowest));
  }
  F top = s[0];
  for (int c = 1; c < kTileVectors; ++c) top = Max(top, s[c]);
  if (AnyGreater(top, Broadcast(*max + kMostWeight))) {
    const float grown = ReduceMax(top);
    if (*max != kLowest) {  // else the sums are zero
      const F shrink = Exp2(Broadcast(*max - grown));
      for (int t = 0; t < depth; t += kLanes) Store(sums + t, Load(sums + t) * shrink);
      Store(weight_sum, Load(weight_sum) * shrink);
    }
    *max = grown;
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

// One tile as a block reads it.
struct TileView {
  const float* k = nullptr;  // [depth, 64]
  const float* v = nullptr;  // [count, depth], rows v_stride apart
  int64_t v_stride = 0;
};

// Keys first_place.. of the block's list, where they lie or put together in `packed` [depth, 64] and `values` [64,
// depth].
static TileView MakeTile(const AttendBlock& block, int64_t first_place, int count, float* packed, float* values) {
  const int depth = block.depth;
  const int32_t* list = block.list == nullptr ? nullptr : block.list + first_place;
  const bool run = list == nullptr || list[count - 1] - list[0] == count - 1;  // they ascend
  const int64_t first_key = list == nullptr ? first_place : list[0];
  TileView tile;
  tile.k = packed;
  if (run && block.k_tiles != nullptr && first_key % kTileKeys == 0) {
    tile.k = block.k_tiles + first_key * depth;
  } else if (run) {
    PackTile<false>(block.k + first_key * block.k_stride, block.k_stride, nullptr, count, block.k_columns, depth,
                    packed);
  } else {
    PackTile<true>(block.k, block.k_stride, list, count, block.k_columns, depth, packed);
  }
  // Rows that lie far apart fall into few sets of the cache; a few queries do not come back to them.
  if (run && block.v_columns == depth && (block.v_stride == depth || block.rows <= kScoreRows)) {
    tile.v = block.v + first_key * block.v_stride;
    tile.v_stride = block.v_stride;
    return tile;
  }
  for (int key = 0; key < count; ++key) {
    const float* from = block.v + (list == nullptr ? first_key + key : list[key]) * block.v_stride;
    float* to = values + key * depth;
    int t = 0;
    for (; t + kLanes <= block.v_columns; t += kLanes) Store(to + t, Load(from + t));
    for (; t < depth; ++t) to[t] = t < block.v_columns ? from[t] : 0.0f;
  }
  tile.v = values;
  tile.v_stride = depth;
  return tile;
}

// Asks for the rows of the tile at first_place while the one before is computed: scattered rows are no stream that the
// processor would follow by itself. A few queries are done too soon for it to be worth the instructions.
static void FetchNext(const AttendBlock& block, int64_t first_place, int64_t keys) {
  if (block.rows < 64 || first_place >= keys) return;
  const int64_t count = keys - first_place < kTileKeys ? keys - first_place : kTileKeys;
  const int32_t* list = block.list + first_place;
  if (list[count - 1] - list[0] == count - 1) return;
  constexpr int kLine = 16;  // floats
  for (int64_t key = 0; key < count; ++key) {
    const float* k = block.k + list[key] * block.k_stride;
    const float* v = block.v + list[key] * block.v_stride;
    for (int t = 0; t < block.k_columns; t += kLine) __builtin_prefetch(k + t, 0, 2);
    for (int t = 0; t < block.v_columns; t += kLine) __builtin_prefetch(v + t, 0, 2);
  }
}

static void AttendDense(const AttendBlock& block) {
  const int depth = block.depth;
  float* packed = block.scratch;                        // [depth, 64] when keys come unpacked
  float* values = packed + depth * kTileKeys;           // [64, depth] when values come one by one
  float* scores = values + depth * kTileKeys;           // [12, 64]
  float* weight_sum = scores + kStripRows * kTileKeys;  // [rows, kLanes]
  int64_t keys = block.keys;
  if (block.limits != nullptr) {
    keys = 0;
    for (int r = 0; r < block.rows; ++r) keys = keys < block.limits[r] ? block.limits[r] : keys;
  }
  for (int i = 0; i < block.rows * depth; ++i) block.sums[i] = 0.0f;
  for (int i = 0; i < block.rows * kLanes; ++i) weight_sum[i] = 0.0f;
  for (int r = 0; r < block.rows; ++r) block.max_score[r] = kLowest;
  for (int64_t first_place = 0; first_place < keys; first_place += kTileKeys) {
    const int64_t left = keys - first_place;
    const int count = left < kTileKeys ? static_cast<int>(left) : kTileKeys;
    const uint64_t present = ~uint64_t{0} >> (kTileKeys - count);
    const TileView tile = MakeTile(block, first_place, count, packed, values);
    if (block.list != nullptr) FetchNext(block, first_place + kTileKeys, keys);
    TilePositions positions;
    if (block.bias != nullptr) FindPositions(block, first_place, count, &positions);
    for (int row0 = 0; row0 < block.rows; row0 += kStripRows) {
      const int rows = block.rows - row0 < kStripRows ? block.rows - row0 : kStripRows;
      uint64_t mask[kStripRows];
      uint64_t any = 0;
      for (int r = 0; r < rows; ++r) {
        if (block.limits != nullptr) {
          const int64_t seen = block.limits[row0 + r] - first_place;
          mask[r] = seen >= count ? present : seen <= 0 ? 0 : ~uint64_t{0} >> (kTileKeys - seen);
        } else {
          mask[r] =
              block.bits == nullptr ? present : block.bits[(row0 + r) * block.bit_words + first_place / kTileKeys];
        }
        any |= mask[r];
      }
      if (any == 0) continue;
      const int end = kTileKeys - __builtin_clzll(any);  // keys from here on have weight 0 for all rows
      const int vectors = (end + kLanes - 1) / kLanes;
      float* sums = block.sums + row0 * depth;
      const int first_half = rows < kScoreRows ? rows : kScoreRows;
      kScoreSteps[first_half](block.q + row0 * depth, depth, tile.k, vectors, scores);
      if (rows > kScoreRows) {
        kScoreSteps[rows - kScoreRows](block.q + (row0 + kScoreRows) * depth, depth, tile.k, vectors,
                                       scores + kScoreRows * kTileKeys);
      }
      if (block.bias != nullptr) {
        for (int r = 0; r < rows; ++r) AddTileBias(block, row0 + r, positions, vectors, scores + r * kTileKeys);
      }
      for (int r = 0; r < rows; ++r) {
        WeighRow(mask[r], scores + r * kTileKeys, sums + r * depth, depth, weight_sum + (row0 + r) * kLanes,
                 block.max_score + row0 + r);
      }
      if (rows == kStripRows) {
        AddStripValues(scores, tile.v, tile.v_stride, end, sums, depth);
        continue;
      }
      kValueSteps[first_half](scores, tile.v, tile.v_stride, end, sums, depth);
      if (rows > kScoreRows) {
        kValueSteps[rows - kScoreRows](scores + kScoreRows * kTileKeys, tile.v, tile.v_stride, end,
                                       sums + kScoreRows * depth, depth);
      }
    }
  }
  for (int r = 0; r < block.rows; ++r) block.weight_sum[r] = ReduceAdd(Load(weight_sum + r * kLanes));
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
