// Attention of a block of query rows over lists of edges. Included by the file of each instruction set after its
// simd_*.h and draw_*.inl.
//
// Keys are taken in segments that all rows finish before the next, so that a segment of k and v stays in the cache while
// the rows of the block use it; a row carries its maximum and sums from segment to segment. Within a segment all rows are
// scored, then weighed, then summed: a row's edges are few, and one row after the other would wait for its own chain of
// maximum, exponential and sum.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Edges of one row in one segment.
struct RowEdges {
  const int32_t* keys;
  const float* multiplicity;  // or null
  float* scores;              // [count rounded up to 16]
  int64_t count;
};

// scores[e] = <q, k[keys[e]]>; the last score again up to the next multiple of 16. kVectors: depth / 16, or 0 for any.
template <int kVectors>
EDGEWISE_INLINE void GatherScores(const float* q, const AttendBlock& block, const RowEdges& row) {
  const int vectors = kVectors > 0 ? kVectors : block.depth / 16;
  const int64_t stride = kVectors > 0 ? 16 * kVectors : block.k_stride;  // depths that are compiled in lie packed
  const DotOperand<kVectors> query = LoadOperand<kVectors>(q);
  int64_t e = 0;
  for (; e + 16 <= row.count; e += 16) {
    StoreDots16<kVectors>(query, vectors, block.k, stride, row.keys + e, row.scores + e);
  }
  if (e == row.count) return;
  alignas(64) int32_t padded[16];
  PadKeys(row.keys + e, row.count - e, padded);
  StoreDots16<kVectors>(query, vectors, block.k, stride, padded, row.scores + e);
}

// Turns scores into weights under the row's running maximum and adds them up. Returns what earlier sums shrink by.
EDGEWISE_INLINE F WeighEdges(const AttendBlock& block, int r, const RowEdges& row) {
  F top = Load(row.scores);
  for (int64_t e = 0; e < (row.count + 15) / 16 * 16; e += kLanes) top = Max(top, Load(row.scores + e));
  const float old_max = block.max_score[r];
  const float segment_max = ReduceMax(top);
  const float max = segment_max > old_max ? segment_max : old_max;
  const F shrink = Exp2(Broadcast(old_max - max));
  block.max_score[r] = max;
  F total = Zero();
  for (int64_t e = 0; e < row.count; e += kLanes) {
    const int rest = row.count - e < kLanes ? static_cast<int>(row.count - e) : kLanes;
    F weight = Exp2(Load(row.scores + e) - Broadcast(max));
    if (row.multiplicity != nullptr) weight = weight * LoadFirst(row.multiplicity + e, rest);
    weight = Select((1u << rest) - 1, weight, Zero());
    Store(row.scores + e, weight);
    total = total + weight;
  }
  block.weight_sum[r] = block.weight_sum[r] * shrink[0] + ReduceAdd(total);
  return shrink;
}

// sums = sums * shrink + sum of weights[e] * v[keys[e]], for kVectors vectors of columns. Even and odd edges are summed
// apart: one chain of additions would wait for itself.
template <int kVectors>
EDGEWISE_INLINE void AddGathered(const RowEdges& row, const float* v, int64_t v_stride, F shrink, float* sums) {
  F even[kVectors], odd[kVectors];
  for (int c = 0; c < kVectors; ++c) {
    even[c] = Load(sums + c * kLanes) * shrink;
    odd[c] = Zero();
  }
  int64_t e = 0;
  for (; e + 2 <= row.count; e += 2) {
    const float* v0 = v + row.keys[e] * v_stride;
    const float* v1 = v + row.keys[e + 1] * v_stride;
    const F weight0 = Broadcast(row.scores[e]);
    const F weight1 = Broadcast(row.scores[e + 1]);
    for (int c = 0; c < kVectors; ++c) even[c] = Fma(weight0, Load(v0 + c * kLanes), even[c]);
    for (int c = 0; c < kVectors; ++c) odd[c] = Fma(weight1, Load(v1 + c * kLanes), odd[c]);
  }
  if (e < row.count) {
    const float* v0 = v + row.keys[e] * v_stride;
    for (int c = 0; c < kVectors; ++c) even[c] = Fma(Broadcast(row.scores[e]), Load(v0 + c * kLanes), even[c]);
  }
  for (int c = 0; c < kVectors; ++c) Store(sums + c * kLanes, even[c] + odd[c]);
}

EDGEWISE_INLINE void AddEdges(const AttendBlock& block, int r, const RowEdges& row, F shrink) {
  const int depth = block.depth;
  float* sums = block.sums + r * depth;
  int t = 0;
  if (depth == 64 && block.v_stride == 64) {
    for (; t < 64; t += 4 * kLanes) AddGathered<4>(row, block.v + t, 64, shrink, sums + t);
    return;
  }
  if (depth == 32 && block.v_stride == 32) {
    for (; t < 32; t += 2 * kLanes) AddGathered<2>(row, block.v + t, 32, shrink, sums + t);
    return;
  }
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) AddGathered<4>(row, block.v + t, block.v_stride, shrink, sums + t);
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) AddGathered<2>(row, block.v + t, block.v_stride, shrink, sums + t);
  for (; t < depth; t += kLanes) AddGathered<1>(row, block.v + t, block.v_stride, shrink, sums + t);
}

EDGEWISE_INLINE void ScoreRow(const AttendBlock& block, int r, const RowEdges& row) {
  const float* q = block.q + r * block.depth;
  if (block.depth == 32 && block.k_stride == 32) return GatherScores<2>(q, block, row);
  if (block.depth == 64 && block.k_stride == 64) return GatherScores<4>(q, block, row);
  GatherScores<0>(q, block, row);
}

// First edge from `begin` on that is not below `key`.
EDGEWISE_INLINE int64_t FindKey(const int32_t* edges, int64_t begin, int64_t end, int64_t key) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (edges[middle] < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

static void AttendGather(const AttendBlock& block) {
  int64_t next[kBlockRows] = {};
  for (int r = 0; r < block.rows; ++r) {
    if (block.offsets != nullptr) next[r] = block.offsets[r];
    block.max_score[r] = kLowest;
    block.weight_sum[r] = 0.0f;
    for (int t = 0; t < block.depth; ++t) block.sums[r * block.depth + t] = 0.0f;
  }
  RowEdges rows[kBlockRows];
  F shrink[kBlockRows];
  for (int64_t first_key = 0; first_key < block.keys; first_key += block.segment) {
    const int64_t end_key = first_key + block.segment < block.keys ? first_key + block.segment : block.keys;
    float* scores = block.scratch;  // edges of the segment, rows rounded up to 16
    int32_t* listed = block.keys_scratch;
    for (int r = 0; r < block.rows; ++r) {
      RowEdges& row = rows[r];
      if (block.offsets == nullptr) {
        const uint64_t* bits = block.bits + r * block.bit_words + first_key / 64;
        row.keys = listed;
        row.multiplicity = nullptr;
        row.count = ListBits(bits, (end_key - first_key + 63) / 64, static_cast<int32_t>(first_key), listed);
        listed += row.count;
      } else {
        const int64_t begin = next[r];
        next[r] = end_key == block.keys ? block.offsets[r + 1]
                                        : FindKey(block.edges, begin, block.offsets[r + 1], end_key);
        row.keys = block.edges + begin;
        row.multiplicity = block.multiplicity == nullptr ? nullptr : block.multiplicity + begin;
        row.count = next[r] - begin;
      }
      row.scores = scores;
      scores += (row.count + 15) / 16 * 16;
    }
    for (int r = 0; r < block.rows; ++r) {
      if (rows[r].count > 0) ScoreRow(block, r, rows[r]);
    }
    for (int r = 0; r < block.rows; ++r) {
      if (rows[r].count > 0) shrink[r] = WeighEdges(block, r, rows[r]);
    }
    for (int r = 0; r < block.rows; ++r) {
      if (rows[r].count > 0) AddEdges(block, r, rows[r], shrink[r]);
    }
  }
}

static void EdgeScores(const AttendBlock& block, int row, float* out) {
  const int64_t begin = block.offsets[row];
  ScoreRow(block, row, {block.edges + begin, nullptr, out, block.offsets[row + 1] - begin});
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
