// Blocks of query rows whose edges are drawn, or given as drawn ones: their edges, scores, softmax and weighted sums.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

// Blocks with at least this share of their pairs as edges are computed by dense tiles, the others edge by edge. Decided
// by the edges alone, so that equal edges give equal bytes whether drawn or given.
constexpr double kTileShare = 0.34;
constexpr double kShallowTileShare = 0.29;  // up to 32 columns, where an edge costs more beside a pair of a tile

// Keys that all rows of a block finish before the next: enough for some fifty edges of a row, which fill batches of 16,
// and, where edges are many, few enough to stay in the fastest cache. Depends on the block's edges alone.
int64_t SegmentOf(uint64_t edges, int rows, int64_t n) {
  constexpr double kEdges = 52.0;
  const int64_t whole = (n + 63) / 64 * 64;
  const double share = static_cast<double>(edges) / (static_cast<double>(rows) * static_cast<double>(n));
  if (share * static_cast<double>(n) <= kEdges) return whole;
  return std::min(whole, (static_cast<int64_t>(kEdges / share) + 63) / 64 * 64);
}

// The edges of `lists`.
BlockEdges ViewOf(const EdgeLists& lists, int rows) {
  BlockEdges edges;
  edges.offsets = lists.offsets.data();
  edges.keys = lists.keys.data();
  edges.multiplicity = lists.multiplicity.empty() ? nullptr : lists.multiplicity.data();
  edges.count = static_cast<uint64_t>(lists.offsets[rows]);
  return edges;
}

BlockEdges GivenEdges(const Head& head, int64_t row0, int rows, EdgeLists& lists) {
  const HeadEdges& given = *head.given;
  row0 -= FirstGivenRow(*head.problem, given);
  const int64_t base = given.row_offsets[row0];
  lists.offsets.resize(static_cast<size_t>(rows) + 1);
  for (int r = 0; r <= rows; ++r) lists.offsets[r] = given.row_offsets[row0 + r] - base;
  lists.multiplicity.clear();
  const int32_t* multiplicity = given.multiplicity.empty() ? nullptr : given.multiplicity.data() + base;
  if (multiplicity != nullptr &&
      std::any_of(multiplicity, multiplicity + lists.offsets[rows], [](int32_t m) { return m > 1; })) {
    lists.multiplicity.assign(multiplicity, multiplicity + lists.offsets[rows]);
  }
  BlockEdges edges = ViewOf(lists, rows);
  edges.keys = given.keys.data() + base;
  return edges;
}

BlockEdges DrawnEdges(const Call& call, const Head& head, int64_t row0, int rows, Worker& worker) {
  const Law law = head.drawn->law;
  DrawnBlock block = DrawBlock(call, head, row0, rows, SpanOf(law, 1.0f, 1.0f), worker);
  worker.lists.multiplicity.clear();
  if (!block.open.empty()) {
    std::erase_if(block.open,
                  [&](const OpenPair& pair) { return !pair.forced && !IsEdge(law, pair.uniform, pair.rate); });
    for (const OpenPair& pair : block.open) block.count += pair.forced ? 0 : 1;
    AddOpenPairs(head, rows, block.open, 1.0, block.bits, worker.lists, block.parallel);
  }
  if (block.bits != nullptr && block.parallel.empty()) {
    BlockEdges edges;
    edges.bits = block.bits;
    edges.bit_words = head.tables.words;
    edges.count = block.count;
    return edges;
  }
  if (block.bits != nullptr) ListBits(call, head, rows, block.bits, worker.lists);
  if (!block.parallel.empty()) SetMultiplicity(head, rows, block.parallel, block.bits, worker.lists);
  BlockEdges edges = ViewOf(worker.lists, rows);
  edges.bits = block.bits;
  edges.bit_words = head.tables.words;
  return edges;
}

// Lists to bits, for dense tiles.
void MarkBits(const Head& head, int rows, BlockEdges& edges, Worker& worker) {
  const int64_t words = head.tables.words;
  std::fill(worker.bits, worker.bits + rows * words, 0);
  for (int r = 0; r < rows; ++r) {
    for (int64_t e = edges.offsets[r]; e < edges.offsets[r + 1]; ++e) {
      worker.bits[r * words + edges.keys[e] / 64] |= uint64_t{1} << (edges.keys[e] % 64);
    }
  }
  edges.bits = worker.bits;
  edges.bit_words = words;
}

// As attend_dense does.
void ScaleQueries(const AttendBlock& attend) {
  for (int r = 0; r < attend.rows; ++r) {
    const float* from = attend.q_given + r * attend.q_stride;
    float* to = attend.q + r * attend.depth;
    for (int t = 0; t < attend.q_columns; ++t) to[t] = from[t] * attend.q_scale;
    for (int t = attend.q_columns; t < attend.depth; ++t) to[t] = 0.0f;
  }
}

// Row r of sums, divided by its weights, into the output. As attend_dense does for listed keys.
void StoreOutput(const Call& call, const Head& head, const BlockEdges& edges, int64_t query, int r, Worker& worker) {
  const int columns = call.value_dim();
  float* out = call.out.row(head.problem->out_row + query - head.first_query) + head.index * columns;
  const float sum = worker.weight_sum[r];
  float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  // Either no edges, which gives zeros, or scores beyond float32, which must not pass for an answer.
  if ((!(sum > 0.0f) || !std::isfinite(worker.max_score[r])) && RowOfBlock(call, edges, r, worker).count > 0) {
    inverse = std::nanf("");
  }
  for (int t = 0; t < columns; ++t) out[t] = worker.sums[r * head.depth + t] * inverse;
}

}  // namespace

AttendBlock OperandsOf(const Call& call, const Head& head, int64_t first, int rows, Worker& worker) {
  const int depth = head.depth;
  AttendBlock attend;
  attend.rows = rows;
  attend.depth = depth;
  attend.keys = head.n;
  attend.k = head.k.data;
  attend.v = head.v.data;
  attend.k_stride = head.k.stride;
  attend.v_stride = head.v.stride;
  attend.k_columns = static_cast<int>(head.k.columns);
  attend.v_columns = static_cast<int>(head.v.columns);
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

void AttendRows(Call& call, int64_t block, Worker& worker) {
  const Head& head = call.HeadOf(block);
  const int64_t row0 = head.first_query + (block - head.first_block) * head.block_rows;
  const int rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0));
  const int depth = head.depth;

  BlockEdges edges = head.given != nullptr ? GivenEdges(head, row0, rows, worker.lists)
                     : head.capped         ? ViewOf(call.kept[block], rows)
                                           : DrawnEdges(call, head, row0, rows, worker);
  const int computed = ComputedRows(head, row0, rows);
  AttendBlock attend = OperandsOf(call, head, row0, computed, worker);
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  const bool dense = edges.multiplicity == nullptr &&
                     static_cast<double>(edges.count) >= (depth <= 32 ? kShallowTileShare : kTileShare) * pairs;
  if (dense && edges.offsets != nullptr) MarkBits(head, rows, edges, worker);
  attend.bits = edges.bits;
  attend.bit_words = edges.bit_words;
  if (computed == 0) {
    // Only counted.
  } else if (dense) {
    worker.block_memory.Lay([&](const auto& place) { place(attend.scratch, DenseScratchFloats(depth)); });
    attend.k_tiles = head.k_tiles;
    call.kernels->attend_dense(attend);
  } else {
    ScaleQueries(attend);
    attend.segment = SegmentOf(edges.count, rows, head.n);
    attend.offsets = edges.offsets;
    attend.edges = edges.keys;
    attend.multiplicity = edges.multiplicity;
    // A segment holds no more edges than the block, and no more than its pairs.
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(edges.count), rows * attend.segment);
    const int64_t padded = most + 16 * rows;
    worker.block_memory.Lay([&](const auto& place) {
      place(attend.scratch, padded + 64);
      place(attend.keys_scratch, padded + 64);
      place(attend.batch_rows, padded / 16 + 64);
      place(attend.unit_rows, padded / 8 + 64);
      place(attend.unit_begins, padded / 8 + 64);
    });
    call.kernels->attend_gather(attend);
  }
  for (int r = 0; r < computed; ++r) StoreOutput(call, head, edges, row0 + r, r, worker);
  attend.rows = rows;
  ReportBlock(call, head, attend, edges, row0, worker, call.reports[block]);
}

}  // namespace edgewise::cpu_attention
