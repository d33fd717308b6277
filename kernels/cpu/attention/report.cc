#include "kernels/cpu/attention/report.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace edgewise::cpu_attention {
namespace {

double ExpectedEdges(const Call& call, const HeadWork& head, int64_t row0, int rows, const BlockEdges& edges,
                     Worker& worker) {
  if (head.drawn == nullptr) return static_cast<double>(edges.count);
  const Law law = head.drawn->law;
  double sum = 0.0;
  for (int64_t row = row0; row < row0 + rows; ++row) {
    sum += call.kernels->expected_row(head.tables, RowOf(head, row), law == Law::kBernoulli ? 0 : 1);
    if (!HasForced(head)) continue;
    std::fill(worker.position_bits, worker.position_bits + head.tables.words, 0);
    AddForced(head, row, worker.position_bits);
    PackBits(head, worker.position_bits, worker.packed_bits);
    const int64_t count = call.kernels->list_bits(worker.packed_bits, head.tables.words, 0, worker.row_keys);
    for (int64_t e = 0; e < count; ++e) sum += 1.0 - EdgeProbability(law, RateOf(head, row, worker.row_keys[e]));
  }
  return sum;
}

// Keeps one block's edges and softmax weights for the report.
void RecordGraph(const Call& call, const HeadWork& head, const AttendBlock& attended, const BlockEdges& edges,
                 Worker& worker, BlockResult& result) {
  const bool multi = head.drawn != nullptr ? head.drawn->law == Law::kPoissonMulti : !head.given->multiplicity.empty();
  for (int r = 0; r < attended.rows; ++r) {
    VisitRow(call, head, edges, r, worker, [&](const int32_t* keys, int64_t count, const float* multiplicity) {
      RecordRow(call, attended, r, {keys, count, multiplicity, multi}, result);
    });
  }
}

}  // namespace

void RecordRow(const Call& call, const AttendBlock& attended, int r, const RowKeys& row, BlockResult& result) {
  result.row_edges.push_back(row.count);
  result.keys.insert(result.keys.end(), row.keys, row.keys + row.count);
  std::vector<float> scores(static_cast<size_t>(row.count) + 16);
  const int64_t offsets[2] = {0, row.count};
  AttendBlock one = attended;
  one.q = attended.q + r * attended.depth;
  if (attended.bias != nullptr) one.query_positions = attended.query_positions + r;
  one.offsets = offsets;
  one.edges = row.keys;
  if (row.count > 0) call.kernels->scores(one, 0, scores.data());
  double sum = 0.0;
  for (int64_t e = 0; e < row.count; ++e) {
    scores[e] =
        std::exp2(scores[e] - attended.max_score[r]) * (row.multiplicity == nullptr ? 1.0f : row.multiplicity[e]);
    sum += scores[e];
  }
  for (int64_t e = 0; e < row.count; ++e) result.weights.push_back(static_cast<float>(scores[e] / sum));
  for (int64_t e = 0; row.multi && e < row.count; ++e) {
    result.multiplicity.push_back(row.multiplicity == nullptr ? 1 : static_cast<int32_t>(row.multiplicity[e]));
  }
}

void Report(const Call& call, const HeadWork& head, const AttendBlock& attended, const BlockEdges& edges, int64_t row0,
            Worker& worker, BlockResult& result) {
  result.edges = edges.count;
  AttentionReport& report = *head.problem->report;
  for (int r = 0; r < attended.rows; ++r) {
    bool any = false;
    if (edges.offsets != nullptr) {
      any = edges.offsets[r + 1] > edges.offsets[r];
    } else {
      for (int64_t word = 0; word < edges.bit_words && !any; ++word) any = edges.bits[r * edges.bit_words + word] != 0;
    }
    if (!any) ++result.isolated;
  }
  if (report.wanted.key_degrees) {
    uint32_t* degrees = report.heads[head.head].key_degrees.data();
    for (int r = 0; r < attended.rows; ++r) {
      VisitRow(call, head, edges, r, worker, [&](const int32_t* keys, int64_t count, const float*) {
        for (int64_t e = 0; e < count; ++e) {
          std::atomic_ref<uint32_t>(degrees[keys[e]]).fetch_add(1, std::memory_order_relaxed);
        }
      });
    }
  }
  if (report.wanted.graph) RecordGraph(call, head, attended, edges, worker, result);
  if (report.wanted.expected) result.expected = ExpectedEdges(call, head, row0, attended.rows, edges, worker);
}

void CollectReports(Call& call) {
  for (const HeadWork& head : call.heads) {
    AttentionReport& report = *head.problem->report;
    HeadReport& out = report.heads[head.head];
    HeadEdges& graph = out.graph;
    if (report.wanted.graph) graph.row_offsets.push_back(0);
    for (int64_t b = head.first_block; b < head.first_block + head.blocks(); ++b) {
      BlockResult& result = call.results[b];
      out.edges += result.edges;
      out.isolated += result.isolated;
      out.expected += result.expected;
      if (!report.wanted.graph) continue;
      for (int64_t count : result.row_edges) graph.row_offsets.push_back(graph.row_offsets.back() + count);
      graph.keys.insert(graph.keys.end(), result.keys.begin(), result.keys.end());
      graph.multiplicity.insert(graph.multiplicity.end(), result.multiplicity.begin(), result.multiplicity.end());
      graph.weights.insert(graph.weights.end(), result.weights.begin(), result.weights.end());
      result = BlockResult();
    }
  }
}

}  // namespace edgewise::cpu_attention
