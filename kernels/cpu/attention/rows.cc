// Blocks of query rows whose edges are drawn, or given as drawn ones: edges, scores, softmax, weighted sum.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Blocks with at least this share of their pairs as edges are computed by dense tiles, the others edge by edge. Decided
// by the realised edges alone, so that equal edges give equal bytes however they came about.
constexpr double kDenseShare = 0.34;
constexpr double kDenseShareShallow = 0.29;  // up to 32 columns, where an edge costs more next to a dense pair
// Keys that all rows of a block finish before the next: some fifty edges of a row, which is enough to fill batches of
// 16 and, where edges are many, few enough keys to stay in the fastest cache. Depends on the block's edges alone.
int64_t SegmentOf(uint64_t edges, int rows, int64_t n) {
  constexpr double kEdges = 52.0;
  const int64_t whole = (n + 63) / 64 * 64;
  const double share = static_cast<double>(edges) / (static_cast<double>(rows) * static_cast<double>(n));
  if (share * static_cast<double>(n) <= kEdges) return whole;
  return std::min(whole, (static_cast<int64_t>(kEdges / share) + 63) / 64 * 64);
}

BlockEdges GivenEdges(const HeadWork& head, int64_t row0, int rows, Worker& worker) {
  const HeadEdges& given = *head.given;
  row0 -= FirstGivenRow(*head.problem, given);
  const int64_t base = given.row_offsets[row0];
  for (int r = 0; r <= rows; ++r) worker.offsets[r] = given.row_offsets[row0 + r] - base;
  BlockEdges edges;
  edges.offsets = worker.offsets;
  edges.keys = given.keys.data() + base;
  edges.count = static_cast<uint64_t>(worker.offsets[rows]);
  const int32_t* multiplicity = given.multiplicity.empty() ? nullptr : given.multiplicity.data() + base;
  if (multiplicity != nullptr &&
      std::any_of(multiplicity, multiplicity + edges.count, [](int32_t m) { return m > 1; })) {
    worker.multiplicity.assign(multiplicity, multiplicity + edges.count);
    edges.multiplicity = worker.multiplicity.data();
  }
  return edges;
}

BlockEdges EdgesOf(const Call& call, const HeadWork& head, int64_t block, int64_t row0, int rows, Worker& worker) {
  if (head.given != nullptr) return GivenEdges(head, row0, rows, worker);
  BlockEdges edges;
  if (!head.capped) return DrawBlock(call, head, row0, rows, worker);
  const KeptEdges& kept = call.kept[block];
  edges.offsets = kept.offsets.data();
  edges.keys = kept.keys.data();
  edges.multiplicity = kept.multiplicity.empty() ? nullptr : kept.multiplicity.data();
  edges.count = kept.keys.size();
  return edges;
}

// Lists to bits, for dense tiles.
void MarkBits(const HeadWork& head, int rows, BlockEdges& edges, Worker& worker) {
  const int64_t words = head.tables.words;
  std::fill(worker.packed_bits, worker.packed_bits + rows * words, 0);
  for (int r = 0; r < rows; ++r) {
    for (int64_t e = edges.offsets[r]; e < edges.offsets[r + 1]; ++e) {
      worker.packed_bits[r * words + edges.keys[e] / 64] |= uint64_t{1} << (edges.keys[e] % 64);
    }
  }
  edges.bits = worker.packed_bits;
  edges.bit_words = words;
}

// As dense tiles do it themselves.
void ScaleQueries(const AttendBlock& attend) {
  for (int r = 0; r < attend.rows; ++r) {
    const float* from = attend.q_given + r * attend.q_stride;
    float* to = attend.q + r * attend.depth;
    for (int t = 0; t < attend.q_columns; ++t) to[t] = from[t] * attend.q_scale;
    for (int t = attend.q_columns; t < attend.depth; ++t) to[t] = 0.0f;
  }
}

// Row r of sums, divided by its weights, into the output, as dense tiles of listed keys do it themselves. `count`: the
// row's edges, asked where it matters.
template <typename Count>
void StoreOutput(const Call& call, const HeadWork& head, int64_t query, int r, const Worker& worker,
                 const Count& count) {
  const int columns = ValueDim(*call.inputs);
  float* out = call.out.row(head.problem->out_row + query - head.first_query) + head.head * columns;
  const float sum = worker.weight_sum[r];
  float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  // No edges, which gives zeros; or scores beyond float32, which must not pass for an answer.
  if ((!(sum > 0.0f) || !std::isfinite(worker.max_score[r])) && count() > 0) inverse = std::nanf("");
  for (int t = 0; t < columns; ++t) out[t] = worker.sums[r * head.depth + t] * inverse;
}

}  // namespace

AttendBlock OperandsOf(const Call& call, const HeadWork& head, int64_t first, int rows, Worker& worker) {
  const int depth = head.depth;
  AttendBlock attend;
  attend.rows = rows;
  attend.depth = depth;
  attend.keys = head.n;
  attend.k = head.k;
  attend.v = head.v;
  attend.k_stride = head.k_stride;
  attend.v_stride = head.v_stride;
  attend.k_columns = head.k_columns;
  attend.v_columns = head.v_columns;
  attend.q = worker.q;
  attend.sums = worker.sums;
  attend.weight_sum = worker.weight_sum;
  attend.max_score = worker.max_score;
  attend.q_given = head.q + first * head.q_stride;
  attend.q_stride = head.q_stride;
  attend.q_columns = call.inputs->head_dim;
  attend.q_scale = call.inputs->scale * 1.44269504088896340736f;  // weights are powers of 2
  if (head.biased) {
    for (int r = 0; r < rows; ++r) worker.query_positions[r] = static_cast<int32_t>(head.position(first + r));
    attend.bias = &head.bias;
    attend.query_positions = worker.query_positions;
  }
  return attend;
}

void AttendOneBlock(Call& call, int64_t block, Worker& worker) {
  const HeadWork& head = call.heads[call.block_head[block]];
  const int64_t row0 = head.first_query + (block - head.first_block) * head.block_rows;
  const int rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0));
  const int depth = head.depth;

  BlockEdges edges = EdgesOf(call, head, block, row0, rows, worker);
  AttendBlock attend = OperandsOf(call, head, row0, rows, worker);
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  if (edges.multiplicity == nullptr &&
      static_cast<double>(edges.count) >= (depth <= 32 ? kDenseShareShallow : kDenseShare) * pairs) {
    if (edges.offsets != nullptr) MarkBits(head, rows, edges, worker);
    worker.GrowAttend(DenseScratchFloats(depth), 0);
    attend.scratch = worker.attend.get();
    attend.k_tiles = head.k_tiles;
    attend.bits = edges.bits;
    attend.bit_words = edges.bit_words;
    call.kernels->attend_dense(attend);
  } else {
    ScaleQueries(attend);
    attend.segment = SegmentOf(edges.count, rows, head.n);
    attend.offsets = edges.offsets;
    attend.edges = edges.keys;
    attend.multiplicity = edges.multiplicity;
    attend.bits = edges.bits;
    attend.bit_words = edges.bit_words;
    // A segment holds no more edges than the block, and no more than its pairs.
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(edges.count), rows * attend.segment);
    const int64_t padded = most + 16 * rows;
    worker.GrowAttend(padded + 64, padded + padded / 16 + 2 * (padded / 8) + 4 * 64);
    attend.scratch = worker.attend.get();
    attend.keys_scratch = worker.attend_keys.get();
    attend.batch_rows = attend.keys_scratch + padded + 64;
    attend.unit_rows = attend.batch_rows + padded / 16 + 64;
    attend.unit_begins = attend.unit_rows + padded / 8 + 64;
    call.kernels->attend_gather(attend);
  }
  for (int r = 0; r < rows; ++r) {
    StoreOutput(call, head, row0 + r, r, worker, [&] {
      int64_t edge_count = 0;
      VisitRow(call, head, edges, r, worker, [&](const int32_t*, int64_t count, const float*) { edge_count = count; });
      return edge_count;
    });
  }
  Report(call, head, attend, edges, row0, worker, call.results[block]);
}

}  // namespace edgewise::cpu_attention
