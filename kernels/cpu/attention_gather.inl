// Attention of a block of query rows over lists of edges. Included by the file of each instruction set after its
// simd_*.h and attention_dense.inl.
//
// Keys are taken in segments that all rows finish before the next, so that a segment of k and v stays in the cache while
// the rows of the block use it; a row carries its maximum and sums from segment to segment.

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// out[e] = <q, k[edges[e]]>. Room for count rounded up to 16.
EDGEWISE_INLINE void GatherScores(const float* q, const AttendBlock& block, const int32_t* edges, int64_t count,
                                  float* out) {
  const int vectors = block.depth / 16;
  for (int64_t e = 0; e < count; e += 16) {
    const float* rows[16];
    for (int k = 0; k < 16; ++k) {
      const int64_t edge = e + k < count ? e + k : count - 1;
      rows[k] = block.k + edges[edge] * block.k_stride;
    }
    StoreDots16(q, rows, vectors, out + e);
  }
}

// sums = sums * shrink + sum of weights[e] * v[edges[e]], for kVectors vectors of columns. Even and odd edges are summed
// apart: one chain of additions would wait for itself.
template <int kVectors>
EDGEWISE_INLINE void AddGathered(const float* weights, const float* v, int64_t v_stride, const int32_t* edges,
                                 int64_t count, F shrink, float* sums) {
  F even[kVectors], odd[kVectors];
  for (int c = 0; c < kVectors; ++c) {
    even[c] = Load(sums + c * kLanes) * shrink;
    odd[c] = Zero();
  }
  int64_t e = 0;
  for (; e + 2 <= count; e += 2) {
    const float* v0 = v + edges[e] * v_stride;
    const float* v1 = v + edges[e + 1] * v_stride;
    const F weight0 = Broadcast(weights[e]);
    const F weight1 = Broadcast(weights[e + 1]);
    for (int c = 0; c < kVectors; ++c) even[c] = Fma(weight0, Load(v0 + c * kLanes), even[c]);
    for (int c = 0; c < kVectors; ++c) odd[c] = Fma(weight1, Load(v1 + c * kLanes), odd[c]);
  }
  if (e < count) {
    const float* v0 = v + edges[e] * v_stride;
    for (int c = 0; c < kVectors; ++c) even[c] = Fma(Broadcast(weights[e]), Load(v0 + c * kLanes), even[c]);
  }
  for (int c = 0; c < kVectors; ++c) Store(sums + c * kLanes, even[c] + odd[c]);
}

// One row's edges of one segment. scores: room for count rounded up to 16.
EDGEWISE_INLINE void GatherRow(const AttendBlock& block, int row, const int32_t* edges, const float* multiplicity,
                               int64_t count, float* scores) {
  const int depth = block.depth;
  GatherScores(block.q + row * depth, block, edges, count, scores);
  F top = Broadcast(kLowest);
  int64_t e = 0;
  for (; e + kLanes <= count; e += kLanes) top = Max(top, Load(scores + e));
  if (e < count) {
    const int rest = static_cast<int>(count - e);
    const F last = Select((1u << rest) - 1, LoadFirst(scores + e, rest), Broadcast(kLowest));
    top = Max(top, last);
    Store(scores + e, last);  // padding: weighs nothing
  }
  const float old_max = block.max_score[row];
  const float segment_max = ReduceMax(top);
  const float max = segment_max > old_max ? segment_max : old_max;
  const F shrink = Exp2(Broadcast(old_max - max));
  block.max_score[row] = max;
  F total = Zero();
  for (e = 0; e < count; e += kLanes) {
    const int rest = count - e < kLanes ? static_cast<int>(count - e) : kLanes;
    F weight = Exp2(Load(scores + e) - Broadcast(max));
    if (multiplicity != nullptr) weight = weight * LoadFirst(multiplicity + e, rest);
    weight = Select((rest == 32 ? 0u : 1u << rest) - 1, weight, Zero());
    Store(scores + e, weight);
    total = total + weight;
  }
  block.weight_sum[row] = block.weight_sum[row] * shrink[0] + ReduceAdd(total);
  float* sums = block.sums + row * depth;
  int t = 0;
  for (; t + 4 * kLanes <= depth; t += 4 * kLanes) {
    AddGathered<4>(scores, block.v + t, block.v_stride, edges, count, shrink, sums + t);
  }
  for (; t + 2 * kLanes <= depth; t += 2 * kLanes) {
    AddGathered<2>(scores, block.v + t, block.v_stride, edges, count, shrink, sums + t);
  }
  for (; t < depth; t += kLanes) AddGathered<1>(scores, block.v + t, block.v_stride, edges, count, shrink, sums + t);
}

static void AttendGather(const AttendBlock& block) {
  float* scores = block.scratch;  // [segment + 16]
  int32_t* listed = reinterpret_cast<int32_t*>(scores + (block.segment + 16));  // [segment + 64], when edges are bits
  int64_t next[kBlockRows] = {};
  for (int r = 0; r < block.rows; ++r) {
    if (block.offsets != nullptr) next[r] = block.offsets[r];
    block.max_score[r] = kLowest;
    block.weight_sum[r] = 0.0f;
    for (int t = 0; t < block.depth; ++t) block.sums[r * block.depth + t] = 0.0f;
  }
  for (int64_t first_key = 0; first_key < block.keys; first_key += block.segment) {
    const int64_t end_key = first_key + block.segment < block.keys ? first_key + block.segment : block.keys;
    for (int r = 0; r < block.rows; ++r) {
      if (block.offsets == nullptr) {
        const uint64_t* bits = block.bits + r * block.bit_words + first_key / 64;
        const int64_t count = ListBits(bits, (end_key - first_key + 63) / 64, static_cast<int32_t>(first_key), listed);
        if (count > 0) GatherRow(block, r, listed, nullptr, count, scores);
        continue;
      }
      const int64_t begin = next[r];
      int64_t end = block.offsets[r + 1];
      if (end_key < block.keys) {
        int64_t low = begin;  // first edge at or beyond end_key
        while (low < end) {
          const int64_t middle = (low + end) / 2;
          if (block.edges[middle] < end_key) {
            low = middle + 1;
          } else {
            end = middle;
          }
        }
      }
      next[r] = end;
      if (end == begin) continue;
      const float* multiplicity = block.multiplicity == nullptr ? nullptr : block.multiplicity + begin;
      GatherRow(block, r, block.edges + begin, multiplicity, end - begin, scores);
    }
  }
}

static void EdgeScores(const AttendBlock& block, int row, float* out) {
  const int64_t begin = block.offsets[row];
  GatherScores(block.q + row * block.depth, block, block.edges + begin, block.offsets[row + 1] - begin, out);
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
