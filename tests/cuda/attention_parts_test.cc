// A layer whose edges are drawn and attended to in parts has the bytes, edges and reports that it has as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/lists.h"
#include "kernels/reference.h"
#include "tests/cuda/attention_rows_case.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::Drawn;

struct Result {
  std::vector<float> out;
  std::vector<AttentionReport> reports;
  bool capped = false;
};

Result RunIn(Case& made, bool bf16, uint64_t cap, int64_t most_bytes) {
  const auto device = *Device::Open(0);
  Result result;
  result.out.assign(static_cast<size_t>(made.out_rows * made.out_columns()), -7.0f);
  std::vector<EdgeCap> caps;
  if (cap != kNoCap) caps.push_back({.max_edges = cap});
  Attention attention(*device, bf16, kMostPartFloats, most_bytes);
  const Matrix out(result.out.data(), made.out_rows, made.out_columns());
  EXPECT_TRUE(attention.Attend(made.inputs, made.problems, caps, out).ok());
  EXPECT_TRUE(attention.Collect({}).ok());
  for (const AttentionProblem& problem : made.problems) result.reports.push_back(*problem.report);
  result.capped = !caps.empty() && caps[0].capped;
  return result;
}

void ExpectSame(const Result& a, const Result& b) {
  EXPECT_TRUE(SameBytes(a.out, b.out));
  EXPECT_EQ(a.capped, b.capped);
  for (size_t p = 0; p < a.reports.size(); ++p) {
    for (size_t h = 0; h < a.reports[p].heads.size(); ++h) {
      const HeadReport &one = a.reports[p].heads[h], &other = b.reports[p].heads[h];
      EXPECT_EQ(one.edges, other.edges);
      EXPECT_EQ(one.isolated, other.isolated);
      EXPECT_EQ(one.expected, other.expected);
      EXPECT_EQ(one.key_degrees, other.key_degrees);
      EXPECT_EQ(one.graph.row_offsets, other.graph.row_offsets);
      EXPECT_EQ(one.graph.keys, other.graph.keys);
      EXPECT_EQ(one.graph.multiplicity, other.graph.multiplicity);
      EXPECT_EQ(one.graph.weights, other.graph.weights);
    }
  }
}

TEST(AttentionPartsTest, ChangeNoByteNorEdge) {
  for (const Law law : testing::kLaws) {
    for (const DrawWay way : {DrawWay::kPairs, DrawWay::kEvents}) {
      for (const uint64_t cap : {kNoCap, uint64_t{500}}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(static_cast<int>(way)) + " " +
                     std::to_string(cap));
        Shape shape;
        shape.lengths = {200, 90, 1};
        shape.mean_rate = law == Law::kPoissonSet && way == DrawWay::kPairs ? 0.09 : 0.03;  // just dense, and not
        Case made(shape);
        DrawnRows drawn = Drawn(law);
        drawn.self_loops = true;
        drawn.way = way;
        made.AddProblems(drawn, cap == kNoCap ? -1 : 0);
        made.AskForAll();
        const bool bf16 = law == Law::kPoissonSet;
        const Result whole = RunIn(made, bf16, cap, kMostEdgeBytes);
        EXPECT_EQ(whole.capped, cap != kNoCap);
        // A head at a time, a part of a head at a time.
        for (const int64_t most : {int64_t{1} << 18, int64_t{1}}) ExpectSame(RunIn(made, bf16, cap, most), whole);
      }
    }
  }
}

// Whether a head is dense is a question to all of it, not to the parts so far.
TEST(AttentionPartsTest, ChangeNoByteOfDenseHeads) {
  for (const bool bf16 : {false, true}) {
    for (const uint64_t cap : {kNoCap, uint64_t{6000}}) {
      for (const double rate : {0.06, 0.3}) {
        Shape shape;
        shape.lengths = {200, 130};
        shape.mean_rate = rate;
        Case made(shape);
        DrawnRows drawn = Drawn(Law::kBernoulli);
        drawn.way = DrawWay::kPairs;
        made.AddProblems(drawn, cap == kNoCap ? -1 : 0);
        made.AskForAll();
        const Result whole = RunIn(made, bf16, cap, kMostEdgeBytes);
        EXPECT_GT(whole.reports[0].heads[0].edges * kDenseHeadShare, 200u * 200u);
        for (const int64_t most : {int64_t{1} << 12, int64_t{1}}) ExpectSame(RunIn(made, bf16, cap, most), whole);
      }
    }
  }
}

// In parts, edges that a report asks for are drawn again.
TEST(AttentionPartsTest, AGraphDrawsTheProblemsPartsAgainAlone) {
  Shape shape;
  shape.lengths = {70, 70, 70, 70, 70, 70};
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  const auto launches = [&] {
    const uint64_t before = emulator::launches();
    RunIn(made, false, kNoCap, 1);
    return emulator::launches() - before;
  };
  const uint64_t without = launches();
  made.reports[2]->wanted.graph = true;
  EXPECT_LT(launches() - without, without);
}

// Beyond what 16 bits count, in parts of a head.
TEST(AttentionPartsTest, ASequenceOf70000TokensHasTheReferencesEdges) {
  Shape shape;
  shape.lengths = {70000};
  shape.heads = 1;
  shape.head_dim = 8;
  shape.rank = 16;
  shape.mean_rate = 2.0 / 70000.0;
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  made.problems[0].report->wanted.graph = true;
  const Result got = RunIn(made, false, kNoCap, kMostEdgeBytes);
  HeadEdges want;
  want.row_offsets.assign(70001, 0);
  for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], 0)) {
    want.keys.push_back(edge.key);
    ++want.row_offsets[static_cast<size_t>(edge.query) + 1];
  }
  std::partial_sum(want.row_offsets.begin(), want.row_offsets.end(), want.row_offsets.begin());
  const HeadEdges& graph = got.reports[0].heads[0].graph;
  EXPECT_GT(want.keys.size(), 100000u);
  EXPECT_GT(SlotBytes(DeviceProblem{.tokens = 70000}, 70000), kMostEdgeBytes) << "one part is enough";
  EXPECT_TRUE(graph.keys == want.keys);
  EXPECT_TRUE(graph.row_offsets == want.row_offsets);
}

// The rule of events bounds the mean of a head's edges, not those of some rows.
TEST(ListRoomTest, IsEveryPairOfSomeRowsAndTheRulesShareOfAll) {
  DeviceProblem problem = {};
  problem.tokens = 4096;
  EXPECT_GT(ListRoom(problem, 4096), 4096 * 4096 / 33);
  EXPECT_LT(ListRoom(problem, 4096), 4096 * 4096 / 32);
  EXPECT_EQ(ListRoom(problem, 64), 64 * 4096);
  problem.self_loops = true;
  EXPECT_GT(ListRoom(problem, 4096), 4096 * 4096 / 33 + 4096);
  problem.way = DrawWay::kEvents;
  EXPECT_EQ(ListRoom(problem, 4096), 4096 * 4096);
  problem.event_head = -1;
  EXPECT_EQ(ListRoom(problem, 4096), 0);
  problem = {};
  problem.tokens = 1 << 17;  // more pairs than 31 bits count
  EXPECT_GT(ListRoom(problem, 1 << 17), (int64_t{1} << 34) / 33);
  problem.tokens = 1 << 20;
  EXPECT_EQ(ListRoom(problem, 1 << 19), 0x7FFFFFFF);  // counted in 31 bits
}

}  // namespace
}  // namespace edgewise::cuda
