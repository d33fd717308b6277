// Blocks of query rows whose edges are drawn, or given as drawn ones: their edges, scores, softmax and weighted sums.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/events.h"
#include "kernels/cpu/attention/report.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/host/pattern_count.h"

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

BlockEdges GivenEdges(const HeadPlan& head, int64_t row0, int rows, EdgeLists& lists) {
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

}  // namespace

BlockEdges DrawnEdges(const Call& call, const HeadPlan& head, int64_t row0, int rows, Worker& worker) {
  const Law law = head.drawn->law;
  if (head.by_events) {
    DrawEventBlock(call, head, row0, rows, {}, worker);
  } else {
    DrawBlock(call, head, row0, rows, SpanOf(law, 1.0f, 1.0f), worker);
  }
  DrawnBlock& block = worker.drawn;
  worker.lists.multiplicity.clear();
  if (!block.open.empty()) {
    std::erase_if(block.open,
                  [&](const OpenPair& pair) { return !pair.forced && !IsEdge(law, pair.uniform, pair.rate); });
    for (const OpenPair& pair : block.open) block.count += pair.forced ? 0 : 1;
    EdgeLists& lists = worker.lists;
    if (block.bits == nullptr) lists.Room(lists.offsets[rows], static_cast<int64_t>(block.open.size()));
    AddOpenPairs(head, rows, block.open, 1.0, block.bits, lists.offsets.data(), lists.keys.data(), block.parallel,
                 worker.added);
  }
  BlockEdges edges;
  if (block.bits == nullptr || !block.parallel.empty()) {
    if (block.bits != nullptr) ListBits(call, head, rows, block.bits, worker.lists);
    if (!block.parallel.empty()) {
      EdgeLists& lists = worker.lists;
      lists.multiplicity.resize(static_cast<size_t>(lists.offsets[rows]));
      SetMultiplicity(head, rows, block.parallel, block.bits, lists.offsets.data(), lists.keys.data(),
                      lists.multiplicity.data());
    }
    edges = ViewOf(worker.lists, rows);
  }
  edges.bits = block.bits;
  edges.count = block.count;
  return edges;
}

AttendBlock OperandsOf(const HeadPlan& head, int64_t first, int rows, Worker& worker) {
  AttendBlock attend = head.operands;
  attend.rows = rows;
  attend.q = worker.q;
  attend.sums = worker.sums;
  attend.max_score = worker.max_score;
  attend.q_given += first * attend.q_stride;
  attend.out += (first - head.first_query) * attend.out_stride;
  for (int r = 0; attend.bias != nullptr && r < rows; ++r) {
    worker.query_positions[r] = static_cast<int32_t>(head.position(first + r));
  }
  attend.query_positions = worker.query_positions;
  return attend;
}

void AttendRows(Call& call, int64_t block, const BlockEdges& capped, Worker& worker) {
  const HeadPlan& head = call.HeadOf(block);
  const int64_t row0 = head.first_query + (block - head.first_block) * head.block_rows;
  const int rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - row0));
  const int depth = head.operands.depth;
  BlockEdges edges = head.given != nullptr ? GivenEdges(head, row0, rows, worker.lists)
                     : head.capped         ? capped
                                           : DrawnEdges(call, head, row0, rows, worker);
  const int computed = ComputedRows(head, row0, rows);
  AttendBlock attend = OperandsOf(head, row0, computed, worker);
  const double pairs = static_cast<double>(rows) * static_cast<double>(head.n);
  const bool dense = edges.multiplicity == nullptr &&
                     static_cast<double>(edges.count) >= (depth <= 32 ? kShallowTileShare : kTileShare) * pairs;
  if (dense && edges.offsets != nullptr) {
    MarkBits(edges.offsets, edges.keys, rows, head.tables.words, worker.bits);
    edges.bits = worker.bits;
  }
  attend.bits = edges.bits;
  if (!dense) {
    attend.offsets = edges.offsets;
    attend.edges = edges.keys;
    attend.multiplicity = edges.multiplicity;
    attend.segment = SegmentOf(edges.count, rows, head.n);
    // A segment holds no more edges than the block, and no more than its pairs.
    attend.room = std::min<int64_t>(static_cast<int64_t>(edges.count), rows * attend.segment) + 16 * rows;
  }
  if (computed > 0) {  // else only counted
    const int64_t floats = dense ? DenseScratchFloats(depth) : GatherScratchFloats(attend.room);
    worker.block_memory.Lay([&](const auto& place) { place(attend.scratch, floats); });
    (dense ? call.kernels->attend_dense : call.kernels->attend_gather)(attend);
  }
  attend.rows = rows;
  ReportBlock(call, head, attend, edges, worker, call.reports[block]);
}

}  // namespace edgewise::cpu_attention
