#include "kernels/cpu/attention/report.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/attention/draw.h"

namespace edgewise::cpu_attention {
namespace {

double ExpectedEdges(const Call& call, const Head& head, int64_t row0, int rows, const BlockEdges& edges,
                     Worker& worker) {
  if (head.drawn == nullptr) return static_cast<double>(edges.count);
  const Law law = head.drawn->law;
  double sum = 0.0;
  for (int64_t row = row0; row < row0 + rows; ++row) {
    sum += call.kernels->expected_row(head.tables, RowOf(head, row), law != Law::kBernoulli);
    if (!HasForced(head)) continue;
    std::fill(worker.position_bits, worker.position_bits + head.tables.words, 0);
    AddForced(head, row, worker.position_bits);
    PackBits(head, worker.position_bits, worker.bits);
    const int64_t count = call.kernels->list_bits(worker.bits, head.tables.words, 0, worker.row_keys);
    for (int64_t e = 0; e < count; ++e) sum += 1.0 - EdgeProbability(law, RateOf(head, row, worker.row_keys[e]));
  }
  return sum;
}

// The edges of row `row` of a block; bits are listed in worker.row_keys.
RowEdges RowOfBlock(const Call& call, const BlockEdges& edges, int64_t words, int row, Worker& worker) {
  if (edges.offsets == nullptr) {
    const uint64_t* bits = edges.bits + row * words;
    return {worker.row_keys, call.kernels->list_bits(bits, words, 0, worker.row_keys), nullptr};
  }
  const int64_t begin = edges.offsets[row];
  return {edges.keys + begin, edges.offsets[row + 1] - begin,
          edges.multiplicity == nullptr ? nullptr : edges.multiplicity + begin};
}

}  // namespace

void RecordRow(const Call& call, const AttendBlock& attended, int r, const RowEdges& row, bool multi,
               BlockReport& report) {
  report.row_edges.push_back(row.count);
  report.keys.insert(report.keys.end(), row.keys, row.keys + row.count);
  std::vector<float> scores(static_cast<size_t>(row.count) + 16);
  const int64_t offsets[2] = {0, row.count};
  AttendBlock one = attended;
  one.q = attended.q + r * attended.depth;
  if (attended.bias != nullptr) one.query_positions = attended.query_positions + r;
  one.offsets = offsets;
  one.edges = row.keys;
  if (row.count > 0) call.kernels->edge_scores(one, 0, scores.data());
  double sum = 0.0;
  for (int64_t e = 0; e < row.count; ++e) {
    scores[e] =
        std::exp2(scores[e] - attended.max_score[r]) * (row.multiplicity == nullptr ? 1.0f : row.multiplicity[e]);
    sum += scores[e];
  }
  for (int64_t e = 0; e < row.count; ++e) report.weights.push_back(static_cast<float>(scores[e] / sum));
  for (int64_t e = 0; multi && e < row.count; ++e) {
    report.multiplicity.push_back(row.multiplicity == nullptr ? 1 : static_cast<int32_t>(row.multiplicity[e]));
  }
}

void ReportBlock(const Call& call, const Head& head, const AttendBlock& attended, const BlockEdges& edges, int64_t row0,
                 Worker& worker, BlockReport& report) {
  report.edges = edges.count;
  const Wanted& wanted = head.problem->report->wanted;
  for (int r = 0; r < attended.rows; ++r) {
    const bool isolated = edges.offsets != nullptr ? edges.offsets[r] == edges.offsets[r + 1]
                                                   : std::all_of(edges.bits + r * attended.bit_words,
                                                                 edges.bits + (r + 1) * attended.bit_words,
                                                                 [](uint64_t word) { return word == 0; });
    report.isolated += isolated ? 1 : 0;
  }
  if (wanted.key_degrees || wanted.graph) {
    uint32_t* degrees = head.problem->report->heads[head.index].key_degrees.data();
    const bool multi =
        head.drawn != nullptr ? head.drawn->law == Law::kPoissonMulti : !head.given->multiplicity.empty();
    for (int r = 0; r < attended.rows; ++r) {
      const RowEdges row = RowOfBlock(call, edges, attended.bit_words, r, worker);
      for (int64_t e = 0; wanted.key_degrees && e < row.count; ++e) {
        std::atomic_ref<uint32_t>(degrees[row.keys[e]]).fetch_add(1, std::memory_order_relaxed);
      }
      if (wanted.graph) RecordRow(call, attended, r, row, multi, report);
    }
  }
  if (wanted.expected) report.expected = ExpectedEdges(call, head, row0, attended.rows, edges, worker);
}

void CollectReports(Call& call) {
  for (const Head& head : call.heads) {
    AttentionReport& report = *head.problem->report;
    HeadReport& out = report.heads[head.index];
    HeadEdges& graph = out.graph;
    if (report.wanted.graph) graph.row_offsets.push_back(0);
    for (int64_t b = head.first_block; b < head.first_block + head.blocks(); ++b) {
      BlockReport& block = call.reports[b];
      out.edges += block.edges;
      out.isolated += block.isolated;
      out.expected += block.expected;
      if (!report.wanted.graph) continue;
      for (int64_t count : block.row_edges) graph.row_offsets.push_back(graph.row_offsets.back() + count);
      graph.keys.insert(graph.keys.end(), block.keys.begin(), block.keys.end());
      graph.multiplicity.insert(graph.multiplicity.end(), block.multiplicity.begin(), block.multiplicity.end());
      graph.weights.insert(graph.weights.end(), block.weights.begin(), block.weights.end());
      block = BlockReport();
    }
  }
}

}  // namespace edgewise::cpu_attention
