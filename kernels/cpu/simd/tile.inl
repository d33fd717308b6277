// Tiles of 64 keys for dense.inl: keys as columns and values as rows, where they lie or put together.
// Included by the file of each instruction set after its vector_*.h.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

inline constexpr int kPartKeys = 16;  // keys of a tile that lie together or are put together
inline constexpr int kTileParts = kTileKeys / kPartKeys;

// Columns of a tile [depth, 64] from the up to 16 keys whose rows are row(0)..row(count - 1), of `columns` elements;
// zeros below those. Columns beyond `count` hold anything: their keys are masked.
template <typename Row>
EDGEWISE_INLINE void PackPart(const Row& row, int count, int columns, int depth, float* tile) {
  int first = 0;
#if defined(EDGEWISE_HAS_TRANSPOSE16)
  const float* from[kPartKeys];
  for (int key = 0; key < kPartKeys; ++key) from[key] = row(key < count ? key : count - 1);
  for (; first + 16 <= columns; first += 16) {
    F rows[kPartKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kPartKeys; ++i) rows[i] = Load(from[i] + first);
    Transpose16(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kPartKeys; ++i) Store(tile + (first + i) * kTileKeys, rows[i]);
  }
#endif
  for (int t = first; t < depth; ++t) {
    for (int key = 0; key < kPartKeys; ++key) {
      tile[t * kTileKeys + key] = key < count && t < columns ? row(key)[t] : 0.0f;
    }
  }
}

static void PackKeyTile(const float* k, int64_t stride, int count, int columns, int depth, float* tile) {
  for (int key = 0; key < count; key += kPartKeys) {
    const auto row = [&](int i) { return k + (key + i) * stride; };
    PackPart(row, count - key < kPartKeys ? count - key : kPartKeys, columns, depth, tile + key);
  }
}

// One tile as a block reads it, in parts of 16 keys.
struct TileView {
  const float* k[kTileParts] = {};  // [depth, 16], rows 64 apart
  const float* v[kTileParts] = {};  // [16, depth], rows v_stride apart
  int64_t v_stride = 0;
  int v_run = kPartKeys;  // keys whose values follow each other: of a part, or of the tile
};

// Keys first_place.. of the block's list, where they lie or put together in `packed` [depth, 64] and `values` [64,
// depth].
static TileView MakeTile(const AttendBlock& block, int64_t first_place, int count, float* packed, float* values) {
  const int depth = block.depth;
  const int32_t* list = block.list == nullptr ? nullptr : block.list + first_place;
  const auto key_at = [&](int place) { return list == nullptr ? first_place + place : list[place]; };
  const bool run = list == nullptr || list[count - 1] - list[0] == count - 1;  // they ascend
  // Rows that lie far apart fall into few sets of the cache; a few queries do not come back to them.
  const bool in_place = block.v_columns == depth && (block.v_stride == depth || (run && block.rows <= kScoreRows));
  TileView tile;
  tile.v_stride = in_place ? block.v_stride : depth;
  if (run || !in_place) tile.v_run = kTileKeys;
  for (int begin = 0; begin < count; begin += kPartKeys) {
    const int part = begin / kPartKeys;
    const int keys = count - begin < kPartKeys ? count - begin : kPartKeys;
    const int64_t first = key_at(begin);
    const bool part_run = run || key_at(begin + keys - 1) - first == keys - 1;
    tile.k[part] = packed + begin;
    if (part_run && block.k_tiles != nullptr && first % kPartKeys == 0) {
      tile.k[part] = block.k_tiles + first / kTileKeys * kTileKeys * depth + first % kTileKeys;
    } else if (part_run) {
      PackPart([&](int i) { return block.k + (first + i) * block.k_stride; }, keys, block.k_columns, depth,
               packed + begin);
    } else {
      PackPart([&](int i) { return block.k + list[begin + i] * block.k_stride; }, keys, block.k_columns, depth,
               packed + begin);
    }
    if (in_place && part_run) {
      tile.v[part] = block.v + first * block.v_stride;
      continue;
    }
    tile.v[part] = values + begin * depth;
    for (int key = begin; key < begin + keys; ++key) {
      const float* from = block.v + key_at(key) * block.v_stride;
      float* to = values + key * depth;
      int t = 0;
      for (; t + kLanes <= block.v_columns; t += kLanes) Store(to + t, Load(from + t));
      for (; t < depth; ++t) to[t] = t < block.v_columns ? from[t] : 0.0f;
    }
  }
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

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
