// Attention of a block of query rows by dense tiles of 64 keys. Edges are masks, or the first keys of a list.
//
// A strip of 12 rows passes over one tile at a time: scores (6 rows x 64 keys in registers), weights, weighted sum of
// values. A strip without an edge in a tile is skipped, which changes no bit: the tile would add zeros.
//
// A row's result depends only on its own keys and their places in the list: every score and every element of the sum is
// one chain of operations, which does not depend on the rows and columns that share its registers.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_DENSE_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_DENSE_INL_

#include "kernels/cpu/simd/bias.inl"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/row.inl"
#include "kernels/cpu/simd/vector.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kPartKeys = 16;  // keys of a tile that are contiguous, or copied to be
inline constexpr int kTileParts = kTileKeys / kPartKeys;

// Fills columns of a tile [depth, 64] from up to 16 keys, whose rows row(0)..row(count - 1) have `columns` elements;
// zeros beyond. Columns beyond `count` may hold anything: their keys are masked.
template <typename Row>
EDGEWISE_INLINE void PackPart(const Row& row, int count, int columns, int depth, float* tile) {
  const float* from[kPartKeys];
  for (int key = 0; key < kPartKeys; ++key) from[key] = row(key < count ? key : count - 1);
  int first = 0;
  for (; first + kLanes <= columns; first += kLanes) {
    for (int key = 0; key < kPartKeys; key += kLanes) {
      F rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = Load(from[key + i] + first);
      Transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(tile + (first + i) * kTileKeys + key, rows[i]);
    }
  }
  for (int t = first; t < depth; ++t) {
    for (int key = 0; key < kPartKeys; ++key) {
      tile[t * kTileKeys + key] = key < count && t < columns ? from[key][t] : 0.0f;
    }
  }
}

static void PackKeyTile(const float* k, int64_t stride, int count, int columns, int depth, float* tile) {
  for (int key = 0; key < count; key += kPartKeys) {
    const auto row = [&](int i) { return k + (key + i) * stride; };
    PackPart(row, count - key < kPartKeys ? count - key : kPartKeys, columns, depth, tile + key);
  }
}

// The row of a key, and of its values.
EDGEWISE_INLINE const float* PageOf(const AttendBlock& block, int64_t key) {
  return block.pages[static_cast<uint64_t>(key) / kTileKeys];
}
EDGEWISE_INLINE const float* KeyRow(const AttendBlock& block, int64_t key) {
  if (block.k != nullptr) return block.k + key * block.k_stride;
  return PageOf(block, key) + block.k_in_page + key % kTileKeys * block.k_stride;
}
EDGEWISE_INLINE const float* ValueRow(const AttendBlock& block, int64_t key) {
  if (block.v != nullptr) return block.v + key * block.v_stride;
  return PageOf(block, key) + block.v_in_page + key % kTileKeys * block.v_stride;
}

// Whether keys first..last, `count` of a list that ascends, have neighbouring rows.
EDGEWISE_INLINE bool IsRun(const AttendBlock& block, int64_t first, int64_t last, int count) {
  return last - first == count - 1 && (block.v != nullptr || first / kTileKeys == last / kTileKeys);
}

// One tile, in parts of 16 keys.
struct TileView {
  int64_t first_place = 0;  // of the keys, in the block's list
  int count = 0;
  const float* k[kTileParts] = {};  // [depth, 16], rows 64 apart; null where KeysByRow()
  const float* v[kTileParts] = {};  // [16, depth], rows v_stride apart
  int64_t v_stride = 0;
  int v_run = kPartKeys;  // keys whose values follow each other: of a part, or of the tile
};

// Whether the keys of a tile stay where they are: the block's only query multiplies them as they are transposed.
static bool KeysByRow(const AttendBlock& block) {
  return block.rows == 1 && block.k_tiles == nullptr && block.k_columns == block.depth;
}

// The keys that are read after those up to `end` of the tile; where they are not known, its own.
static const float* KeysAfter(const AttendBlock& block, const TileView& tile, int end) {
  if (end < tile.count) return KeyRow(block, tile.first_place + end);
  const int64_t next = tile.first_place + kTileKeys, keys = block.limits == nullptr ? block.keys : block.limits[0];
  if (next < keys) return KeyRow(block, next);
  return block.next_k != nullptr ? block.next_k : KeyRow(block, tile.first_place);
}

// The scores of the block's only row with the keys before `end` of the tile, and a few more. Each score is the chain
// of operations that it is in ScoreTile. From a page, whose rows follow each other, the values of these keys and the
// keys that come next are fetched meanwhile, line after line: one query has little else to do while it waits.
static void ScoreByRow(const AttendBlock& block, const TileView& tile, int end, float* scores) {
  const float* const first = block.list == nullptr ? KeyRow(block, tile.first_place) : nullptr;
  const bool fetches = block.pages != nullptr && first != nullptr && tile.v_stride == block.depth;
  for (int begin = 0; begin < end; begin += kPartKeys) {
    const float* from[kPartKeys];
    for (int i = 0; i < kPartKeys; ++i) {
      const int64_t place = begin + i < tile.count ? begin + i : tile.count - 1;
      from[i] = first != nullptr ? first + place * block.k_stride : KeyRow(block, block.list[tile.first_place + place]);
    }
    const float* const next = fetches ? KeysAfter(block, tile, begin + kPartKeys) : nullptr;
    const float* const values = tile.v[begin / kPartKeys];
    F sum[kPartKeys / kLanes];
    for (F& of_vector : sum) of_vector = Zero();
    for (int t = 0; t < block.depth; t += kLanes) {
      for (int line = t; fetches && line < t + kLanes; ++line) {
        __builtin_prefetch(values + line * kPartKeys);
        __builtin_prefetch(next + line * kPartKeys);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kPartKeys / kLanes; ++v) {
        F columns[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) columns[i] = Load(from[v * kLanes + i] + t);
        Transpose(columns);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) sum[v] = Fma(Broadcast(block.q[t + i]), columns[i], sum[v]);
      }
    }
    for (int v = 0; v < kPartKeys / kLanes; ++v) Store(scores + begin + v * kLanes, sum[v]);
  }
}

// A tile of the keys first_place.. of the block's list: in place, or copied: to `packed` [depth, 64], `values` [64,
// depth].
static TileView MakeTile(const AttendBlock& block, int64_t first_place, int count, float* packed, float* values) {
  const int depth = block.depth;
  const int32_t* list = block.list == nullptr ? nullptr : block.list + first_place;
  const auto key_at = [&](int place) { return list == nullptr ? first_place + place : list[place]; };
  const bool run = list == nullptr || IsRun(block, list[0], list[count - 1], count);
  // Rows that lie far apart fall into few sets of the cache, which does not matter to a few queries.
  const bool in_place = block.v_columns == depth && (block.v_stride == depth || (run && block.rows <= kScoreRows));
  const bool keys_by_row = KeysByRow(block);
  TileView tile;
  tile.first_place = first_place;
  tile.count = count;
  tile.v_stride = in_place ? block.v_stride : depth;
  if (run || !in_place) tile.v_run = kTileKeys;
  for (int begin = 0; begin < count; begin += kPartKeys) {
    const int part = begin / kPartKeys;
    const int keys = count - begin < kPartKeys ? count - begin : kPartKeys;
    const int64_t first = key_at(begin);
    const bool part_run = run || IsRun(block, first, key_at(begin + keys - 1), keys);
    if (keys_by_row) {
      tile.k[part] = nullptr;
    } else if (part_run && block.k_tiles != nullptr && first % kPartKeys == 0) {
      tile.k[part] = block.k_tiles + first / kTileKeys * kTileKeys * depth + first % kTileKeys;
    } else {
      tile.k[part] = packed + begin;
      const auto row = [&](int i) { return KeyRow(block, key_at(begin + i)); };
      PackPart(row, keys, block.k_columns, depth, packed + begin);
    }
    if (in_place && part_run) {
      tile.v[part] = ValueRow(block, first);
      continue;
    }
    tile.v[part] = values + begin * depth;
    for (int key = begin; key < begin + keys; ++key) {
      const float* from = ValueRow(block, key_at(key));
      float* to = values + key * depth;
      int t = 0;
      for (; t + kLanes <= block.v_columns; t += kLanes) Store(to + t, Load(from + t));
      for (; t < depth; ++t) to[t] = t < block.v_columns ? from[t] : 0.0f;
    }
  }
  return tile;
}

// Prefetches the rows of the tile at first_place while the tile before is computed: the processor does not prefetch
// scattered rows itself. Not worth the instructions for a few queries.
static void FetchNext(const AttendBlock& block, int64_t first_place, int64_t keys) {
  if (block.rows < 64 || first_place >= keys) return;
  const int64_t count = keys - first_place < kTileKeys ? keys - first_place : kTileKeys;
  const int32_t* list = block.list + first_place;
  if (list[count - 1] - list[0] == count - 1) return;
  constexpr int kLine = 16;  // floats
  for (int64_t key = 0; key < count; ++key) {
    const float* k = KeyRow(block, list[key]);
    const float* v = ValueRow(block, list[key]);
    for (int t = 0; t < block.k_columns; t += kLine) __builtin_prefetch(k + t, 0, 2);
    for (int t = 0; t < block.v_columns; t += kLine) __builtin_prefetch(v + t, 0, 2);
  }
}

inline constexpr int kStripRows = 2 * kScoreRows;
inline constexpr int kTileVectors = kTileKeys / kLanes;
// Base-2 logarithm of the largest weight. The unit of a row's weights is a score, and changes only where another score
// exceeds it by more than this: mostly the first tile fixes the unit.
inline constexpr float kMostWeight = 8.0f;

// scores[r][c] = <q[r], tile column c> for kRows rows and kVectors vectors of columns, from vector `first` on.
template <int kRows, int kVectors>
EDGEWISE_INLINE void ScoreTile(const float* q, int depth, const TileView& tile, int first, float* scores) {
  const float* k[kVectors];
  for (int c = 0; c < kVectors; ++c) {
    const int column = (first + c) * kLanes;
    k[c] = tile.k[column / kPartKeys] + column % kPartKeys;
  }
  F s[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) s[r][c] = Zero();
  }
  for (int t = 0; t < depth; ++t) {
    F key[kVectors];
    for (int c = 0; c < kVectors; ++c) key[c] = Load(k[c] + t * kTileKeys);
    for (int r = 0; r < kRows; ++r) {
      const F query = Broadcast(q[r * depth + t]);
      for (int c = 0; c < kVectors; ++c) s[r][c] = Fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) Store(scores + r * kTileKeys + (first + c) * kLanes, s[r][c]);
  }
}

template <int kRows>
static void ScoreRows(const float* q, int depth, const TileView& tile, int vectors, float* scores) {
  int c = 0;
  for (; c + kScoreVectors <= vectors; c += kScoreVectors) ScoreTile<kRows, kScoreVectors>(q, depth, tile, c, scores);
  if constexpr (kScoreVectors > 2) {
    if (vectors - c == 3) return ScoreTile<kRows, 3>(q, depth, tile, c, scores);
    if (vectors - c == 2) return ScoreTile<kRows, 2>(q, depth, tile, c, scores);
  }
  if (vectors - c == 1) ScoreTile<kRows, 1>(q, depth, tile, c, scores);
}

// sums[r] += sum over `count` keys of weights[r][key] * v[key], for kRows rows and kVectors vectors of columns from t.
template <int kRows, int kVectors>
EDGEWISE_INLINE void AddValues(const float* weights, const TileView& tile, int count, float* sums, int depth, int t) {
  F sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) sum[r][c] = Load(sums + r * depth + t + c * kLanes);
  }
  for (int key = 0; key < count;) {
    const int end = count - key < tile.v_run ? count : key + tile.v_run;
    for (const float* v = tile.v[key / kPartKeys] + t; key < end; ++key, v += tile.v_stride) {
      F value[kVectors];
      for (int c = 0; c < kVectors; ++c) value[c] = Load(v + c * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const F weight = Broadcast(weights[r * kTileKeys + key]);
        for (int c = 0; c < kVectors; ++c) sum[r][c] = Fma(weight, value[c], sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) Store(sums + r * depth + t + c * kLanes, sum[r][c]);
  }
}

template <int kRows>
static void AddRowValues(const float* weights, const TileView& tile, int count, float* sums, int depth) {
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) AddValues<kRows, 4>(weights, tile, count, sums, depth, t);
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) AddValues<kRows, 2>(weights, tile, count, sums, depth, t);
  for (; t < depth; t += kLanes) AddValues<kRows, 1>(weights, tile, count, sums, depth, t);
}

// A whole strip, whose rows share the loads of values.
static void AddStripValues(const float* weights, const TileView& tile, int count, float* sums, int depth) {
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) {
    AddValues<kScoreRows, 4>(weights, tile, count, sums, depth, t);
    AddValues<kScoreRows, 4>(weights + kScoreRows * kTileKeys, tile, count, sums + kScoreRows * depth, depth, t);
  }
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) AddValues<kStripRows, 2>(weights, tile, count, sums, depth, t);
  for (; t < depth; t += kLanes) AddValues<kStripRows, 1>(weights, tile, count, sums, depth, t);
}

// By the number of rows: a strip of up to 12 goes in halves of up to 6.
using ScoreStep = void (*)(const float*, int, const TileView&, int, float*);
using ValueStep = void (*)(const float*, const TileView&, int, float*, int);
static constexpr ScoreStep kScoreSteps[] = {nullptr,      ScoreRows<1>, ScoreRows<2>, ScoreRows<3>,
                                            ScoreRows<4>, ScoreRows<5>, ScoreRows<6>};
static constexpr ValueStep kValueSteps[] = {nullptr,         AddRowValues<1>, AddRowValues<2>, AddRowValues<3>,
                                            AddRowValues<4>, AddRowValues<5>, AddRowValues<6>};

// Turns one row of scores into weights in the row's unit; rescales the sums where the unit grows.
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

// Before the first tile of a strip.
static void BeginStrip(const AttendBlock& block, int row0, int rows, float* weight_sum) {
  for (int r = row0; r < row0 + rows; ++r) {
    Store(weight_sum + r * kLanes, Zero());
    BeginRow(block, r);
  }
}

EDGEWISE_INLINE void FetchRow(const float* row, int columns) {
  constexpr int kLine = 16;  // floats
  for (int t = 0; t < columns; t += kLine) __builtin_prefetch(row + t, 0, 3);
}

// One tile of a strip of up to 12 rows. Prefetches as many rows of `next_q`, one by one: together they would wait for
// each other. `scores`: [12, 64] scratch.
static void AttendStrip(const AttendBlock& block, const TileView& tile, const TilePositions& positions, int row0,
                        int rows, const uint64_t* mask, uint64_t any, const float* next_q, float* scores,
                        float* weight_sum) {
  const int depth = block.depth;
  const int end = kTileKeys - __builtin_clzll(any);  // keys from here on have weight 0 for all rows
  const int vectors = (end + kLanes - 1) / kLanes;
  const float* q = block.q + row0 * depth;
  float* sums = block.sums + row0 * depth;
  const int first_half = rows < kScoreRows ? rows : kScoreRows;
  const int second_half = rows - first_half;
  float* second_scores = scores + kScoreRows * kTileKeys;
  if (KeysByRow(block)) {
    ScoreByRow(block, tile, end, scores);
  } else {
    kScoreSteps[first_half](q, depth, tile, vectors, scores);
  }
  if (second_half > 0) kScoreSteps[second_half](q + kScoreRows * depth, depth, tile, vectors, second_scores);
  if (block.bias != nullptr) {
    for (int r = 0; r < rows; ++r) AddTileBias(block, row0 + r, positions, vectors, scores + r * kTileKeys);
  }
  for (int r = 0; r < rows; ++r) {
    if (next_q != nullptr) FetchRow(next_q + r * block.q_stride, block.q_columns);
    WeighRow(mask[r], scores + r * kTileKeys, sums + r * depth, depth, weight_sum + (row0 + r) * kLanes,
             block.max_score + row0 + r);
  }
  if (rows == kStripRows) return AddStripValues(scores, tile, end, sums, depth);
  kValueSteps[first_half](scores, tile, end, sums, depth);
  if (second_half > 0) kValueSteps[second_half](second_scores, tile, end, sums + kScoreRows * depth, depth);
}

// Edges of rows row0.. of a block in its tile at first_place, of `count` keys. Returns the union over the rows.
EDGEWISE_INLINE uint64_t TileMasks(const AttendBlock& block, int64_t first_place, int count, int row0, int rows,
                                   uint64_t* mask) {
  const uint64_t present = ~uint64_t{0} >> (kTileKeys - count);
  uint64_t any = 0;
  for (int r = 0; r < rows; ++r) {
    if (block.limits != nullptr) {
      const int64_t seen = block.limits[row0 + r] - first_place;
      mask[r] = seen >= count ? present : seen <= 0 ? 0 : ~uint64_t{0} >> (kTileKeys - seen);
      const int64_t hidden = block.starts == nullptr ? 0 : block.starts[row0 + r] - first_place;
      if (hidden > 0) mask[r] = hidden >= kTileKeys ? 0 : mask[r] & ~uint64_t{0} << hidden;
    } else {
      mask[r] = block.bits == nullptr ? present : block.bits[(row0 + r) * block.bit_words + first_place / kTileKeys];
    }
    any |= mask[r];
  }
  return any;
}

static void AttendDense(const AttendBlock& block) {
  const int depth = block.depth;
  float* packed = block.scratch;                        // [depth, 64] of keys that are not packed
  float* values = packed + depth * kTileKeys;           // [64, depth] of values that are not in place
  float* scores = values + depth * kTileKeys;           // [12, 64]
  float* weight_sum = scores + kStripRows * kTileKeys;  // [rows, kLanes]
  int64_t keys = block.keys;
  if (block.limits != nullptr) {
    keys = 0;
    for (int r = 0; r < block.rows; ++r) keys = keys < block.limits[r] ? block.limits[r] : keys;
  }
  int64_t begin = block.starts == nullptr ? 0 : keys;  // of the first tile that a row sees
  for (int r = 0; r < block.rows && begin > 0; ++r) begin = begin < block.starts[r] ? begin : block.starts[r];
  begin = begin / kTileKeys * kTileKeys;
  int64_t first_place = begin;
  do {  // once without keys
    const int count = keys - first_place < kTileKeys ? static_cast<int>(keys - first_place) : kTileKeys;
    TileView tile;
    TilePositions positions;
    if (count > 0) {
      tile = MakeTile(block, first_place, count, packed, values);
      if (block.list != nullptr) FetchNext(block, first_place + kTileKeys, keys);
      if (block.bias != nullptr) FindPositions(block, first_place, count, &positions);
    }
    for (int row0 = 0; row0 < block.rows; row0 += kStripRows) {
      const int rows = block.rows - row0 < kStripRows ? block.rows - row0 : kStripRows;
      const bool last = first_place + kTileKeys >= keys;
      const float* next_q = nullptr;
      if (first_place == begin) {
        BeginStrip(block, row0, rows, weight_sum);
        next_q = block.q_given + (row0 + rows) * block.q_stride;
      }
      uint64_t mask[kStripRows];
      const uint64_t any = count > 0 ? TileMasks(block, first_place, count, row0, rows, mask) : 0;
      if (any != 0) AttendStrip(block, tile, positions, row0, rows, mask, any, next_q, scores, weight_sum);
      for (int r = row0; last && r < row0 + rows; ++r) EndRow(block, r, ReduceAdd(Load(weight_sum + r * kLanes)));
    }
    first_place += kTileKeys;
  } while (first_place < keys);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_DENSE_INL_
