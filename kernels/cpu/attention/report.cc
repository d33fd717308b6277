#include "kernels/cpu/attention/report.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/attention/draw.h"

namespace edgewise::cpu_attention {
namespace {

// The increase of the mean number of edges by the forced edges of a row: each is one, whatever its chance.
double AddedByForced(const Call& call, const HeadPlan& head, int64_t row, Worker& worker) {
  const auto [first, end] = ForcedKeys(head, row);
  if (first == end) return 0.0;
  const int64_t word = head.position(first) / 64;
  DrawTables forced = head.tables;  // of their keys alone
  forced.words = head.position(end - 1) / 64 + 1 - word;
  forced.y_tiles += word * forced.rank * 64;
  forced.valid = worker.position_bits + word;
  std::fill_n(forced.valid, forced.words, 0);
  AddForced(head, row, worker.position_bits);
  double chances = 0.0;
  call.kernels->expected_rows(forced, head.x + row * forced.rank, 1, head.drawn->law != Law::kBernoulli, &chances);
  return static_cast<double>(end - first) - chances;
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

void ReportBlock(const Call& call, const HeadPlan& head, const AttendBlock& attended, const BlockEdges& edges,
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
}

void CollectReports(Call& call) {
  for (const HeadPlan& head : call.heads) {
    AttentionReport& report = *head.problem->report;
    HeadReport& out = report.heads[head.index];
    HeadEdges& graph = out.graph;
    if (report.wanted.graph) graph.row_offsets.push_back(0);
    for (int64_t b = head.first_block; b < head.first_block + head.blocks(); ++b) {
      BlockReport& block = call.reports[b];
      out.edges += block.edges;
      out.isolated += block.isolated;
      if (!report.wanted.graph) continue;
      for (int64_t count : block.row_edges) graph.row_offsets.push_back(graph.row_offsets.back() + count);
      graph.keys.insert(graph.keys.end(), block.keys.begin(), block.keys.end());
      graph.multiplicity.insert(graph.multiplicity.end(), block.multiplicity.begin(), block.multiplicity.end());
      graph.weights.insert(graph.weights.end(), block.weights.begin(), block.weights.end());
      block = BlockReport();
    }
    if (report.wanted.expected && head.drawn == nullptr) out.expected = static_cast<double>(out.edges);
  }
}

void CountExpected(const Call& call, Worker& worker, ExpectedPart& part) {
  const HeadPlan& head = call.heads[part.head];
  const int rows = static_cast<int>(std::min<int64_t>(kExpectedRows, head.n - part.first));
  double sums[kExpectedRows];
  call.kernels->expected_rows(head.tables, head.x + part.first * head.tables.rank, rows,
                              head.drawn->law != Law::kBernoulli, sums);
  part.edges = 0.0;
  for (int r = 0; r < rows; ++r) part.edges += sums[r] + AddedByForced(call, head, part.first + r, worker);
}

void CollectExpected(Call& call) {
  for (const ExpectedPart& part : call.expected) {
    const HeadPlan& head = call.heads[part.head];
    head.problem->report->heads[head.index].expected += part.edges;
  }
}

}  // namespace edgewise::cpu_attention
