// The row kernel's edges: given ones, many chunks of them, and what a cap's cut keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/reference.h"
#include "tests/cuda/attention_rows_case.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::RunReference;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::AttendCase;
using testing::DeviceCase;
using testing::Drawn;
using testing::ExpectReference;
using testing::Get;
using testing::Graph;
using testing::KeptEdge;
using testing::kLaws;

// Output rows without gaps, where problems have fewer queries than tokens.
void PackOutput(Case& made) {
  made.out_rows = 0;
  for (AttentionProblem& problem : made.problems) {
    problem.out_row = made.out_rows;
    made.out_rows += problem.tokens - problem.first_query;
  }
}

// Graphs that the reference drew, as given rows.
std::vector<std::vector<HeadEdges>> Given(const Case& from) {
  for (const auto& report : from.reports) report->wanted.graph = true;
  std::vector<std::vector<HeadEdges>> given;
  for (const AttentionReport& report : RunReference(from).reports) {
    given.emplace_back();
    for (const HeadReport& head : report.heads) given.back().push_back(head.graph);
  }
  return given;
}

TEST(AttentionRowsEdgesTest, DrawnGraphsGivenBackGiveTheSameBytes) {
  for (const Law law : kLaws) {
    for (const double rate : {0.01, 0.1, 0.5}) {
      for (const bool bf16 : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(rate) + (bf16 ? " bf16" : " fp32"));
        Shape shape;
        shape.lengths = {80, 33};
        shape.mean_rate = rate;
        shape.gap_share = 0.1;
        shape.head_dim = 32;
        Case made(shape);
        made.AddProblems(Drawn(law));
        const std::vector<float> want = AttendCase(made, bf16);
        const auto given = Given(made);
        for (size_t p = 0; p < given.size(); ++p) made.problems[p].pattern = ExplicitEdges{&given[p]};
        EXPECT_TRUE(SameBytes(AttendCase(made, bf16), want));
      }
    }
  }
}

TEST(AttentionRowsEdgesTest, GivenRowsMatchTheReference) {
  std::mt19937 random(5);
  Shape shape;
  shape.lengths = {90, 1, 40};
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  std::vector<std::vector<HeadEdges>> given(shape.lengths.size());
  for (size_t p = 0; p < given.size(); ++p) {
    made.problems[p].first_query = p == 2 ? 25 : 0;
    for (int head = 0; head < shape.heads; ++head) {
      HeadEdges edges;
      edges.row_offsets.push_back(0);
      for (int i = made.problems[p].first_query; i < shape.lengths[p]; ++i) {
        const uint32_t share = i % 5 == 0 ? 0 : random() % 100;  // empty and full rows too
        for (int j = 0; j < shape.lengths[p]; ++j) {
          if (random() % 100 >= share && share < 95) continue;
          edges.keys.push_back(j);
          if (p != 1) edges.multiplicity.push_back(1 + static_cast<int>(random() % 4 == 0 ? random() % 90000 : 0));
        }
        edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
      }
      given[p].push_back(edges);
    }
    made.problems[p].pattern = ExplicitEdges{&given[p]};
  }
  PackOutput(made);
  ExpectReference(made);
  for (auto& problem : given) {
    for (HeadEdges& edges : problem) edges.multiplicity.clear();
  }
  ExpectReference(made);
}

// More keys than a chunk has; the last rows only, so that it takes little time.
TEST(AttentionRowsEdgesTest, SeveralChunksMatchTheReference) {
  std::mt19937 random(8);
  for (const int every : {1, 2, 97}) {  // keys of a row: all, half, few
    SCOPED_TRACE(every);
    Shape shape;
    shape.lengths = {2 * kChunkKeys + 70};
    shape.heads = 1;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const int tokens = shape.lengths[0];
    made.problems[0].first_query = tokens - 40;
    std::vector<HeadEdges> given(1);
    given[0].row_offsets.push_back(0);
    for (int i = tokens - 40; i < tokens; ++i) {
      for (int j = i % 7 == 0 ? kChunkKeys : 0; j < tokens; j += 1 + static_cast<int>(random() % every)) {
        given[0].keys.push_back(j);
      }
      given[0].row_offsets.push_back(static_cast<int64_t>(given[0].keys.size()));
    }
    made.problems[0].pattern = ExplicitEdges{&given};
    PackOutput(made);
    ExpectReference(made);
  }
}

TEST(AttentionRowsEdgesTest, DrawsOverSeveralChunksMatchTheReference) {
  for (const double gaps : {0.0, 0.05}) {
    Shape shape;
    shape.lengths = {kChunkKeys + 600};
    shape.heads = 2;
    shape.rank = 16;
    shape.mean_rate = 0.02;
    shape.gap_share = gaps;
    Case made(shape);
    DrawnRows drawn = Drawn(Law::kPoissonMulti);
    drawn.local_window = 20;
    made.AddProblems(drawn);
    DeviceCase device(made);
    std::vector<RowItem> items = Get(device.call.row_items, device.call.num_row_items);
    items = {items[0], items[kChunkKeys / kRowsPerItem], items.back()};
    device.call.row_items = device.memory.Put(items);
    device.call.num_row_items = static_cast<int64_t>(items.size());
    const auto got = GraphsOf(device);
    for (const RowItem& item : items) {
      Graph want, kept;
      const Memberships& m = made.inputs.memberships;
      for (int32_t i = item.first_query; i < item.first_query + item.queries; ++i) {
        for (int32_t j = 0; j < shape.lengths[0]; ++j) {
          const int32_t query = made.positions[0][i], key = made.positions[0][j];
          const float rate = EdgeRate(
              MembershipDot(m.x + (item.head * m.rows + i) * m.rank, m.y + (item.head * m.rows + j) * m.rank, m.rank),
              0.0f);
          const uint64_t uniform = PairUniform(drawn.key, item.head, query, key);
          const int count = EdgeMultiplicity(uniform, rate);
          const bool forced = std::abs(query - key) <= 10;
          if (forced || uniform < EdgeThreshold(EdgeProbability(drawn.law, rate))) {
            want.push_back({i, j, std::max(1, count)});
          }
        }
      }
      for (const KeptEdge& edge : got[0][item.head]) {
        if (edge.query >= item.first_query && edge.query < item.first_query + item.queries) kept.push_back(edge);
      }
      ASSERT_EQ(kept, want);
    }
  }
}

TEST(AttentionRowsEdgesTest, CutsKeepWhatComesBefore) {
  for (const Law law : kLaws) {
    for (const double share : {0.0, 0.3, 0.9}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(share));
      Shape shape;
      shape.lengths = {75};
      shape.mean_rate = 0.3;
      Case made(shape);
      DrawnRows drawn = Drawn(law);
      drawn.self_loops = true;
      made.AddProblems(drawn, 0);
      std::vector<AgedEdge> ages;
      for (int head = 0; head < shape.heads; ++head) {
        for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], head)) {
          if (edge.forced) continue;
          ages.push_back({AgeBits(edge.age), EdgeOrder(0, 2, head, edge.query, edge.key)});
        }
      }
      std::sort(ages.begin(), ages.end(), IsBefore);
      const AgedEdge first_dropped = ages[static_cast<size_t>(share * static_cast<double>(ages.size()))];
      DeviceCase device(made, {testing::CapOf(1)});
      std::vector<DeviceCap> caps = device.Caps();
      caps[0].cut = {first_dropped.age_bits, first_dropped.order};
      caps[0].tau = AgeOfBits(first_dropped.age_bits);
      device.call.caps = device.memory.Put(caps);
      const auto got = GraphsOf(device);
      for (int head = 0; head < shape.heads; ++head) {
        Graph want;
        for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], head)) {
          const AgedEdge aged = {AgeBits(edge.age), EdgeOrder(0, 2, head, edge.query, edge.key)};
          if (!edge.forced && !IsBefore(aged, first_dropped)) continue;
          const int count = EdgeMultiplicity(edge.uniform, caps[0].tau * edge.rate);
          want.push_back({edge.query, edge.key, law == Law::kPoissonMulti ? std::max(1, count) : 1});
        }
        ASSERT_EQ(got[0][head], want);
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
