// A layer whose edges are drawn and attended to in rounds has the bytes, edges and reports that it has as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/lists.h"
#include "kernels/cuda/attention/rounds.h"
#include "kernels/reference/reference.h"
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

TEST(AttentionRoundsTest, ChangeNoByteNorEdge) {
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
        // Some heads at a time, some rows of a head at a time.
        for (const int64_t most : {int64_t{1} << 16, int64_t{1}}) ExpectSame(RunIn(made, bf16, cap, most), whole);
      }
    }
  }
}

// Whether a head is dense is a question to all of it, not to the rows so far.
TEST(AttentionRoundsTest, ChangeNoByteOfDenseHeads) {
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
        for (const int64_t most : {int64_t{1} << 14, int64_t{1}}) ExpectSame(RunIn(made, bf16, cap, most), whole);
      }
    }
  }
}

// Rows as long as can be: one or two fill the pool.
TEST(AttentionRoundsTest, ARowARoundChangesNoByte) {
  Shape shape;
  shape.lengths = {70, 33};
  shape.heads = 1;
  shape.mean_rate = 0.9;
  Case made(shape);
  DrawnRows drawn = Drawn(Law::kBernoulli);
  drawn.way = DrawWay::kEvents;
  for (const uint64_t cap : {kNoCap, uint64_t{2000}}) {
    made.AddProblems(drawn, cap == kNoCap ? -1 : 0);
    made.AskForAll();
    const Result whole = RunIn(made, false, cap, kMostEdgeBytes);
    EXPECT_GT(whole.reports[0].heads[0].edges, cap == kNoCap ? 70u * 50u : 1000u);
    ExpectSame(RunIn(made, false, cap, 1), whole);
  }
}

// What a cap's sample promises too much of is drawn again.
TEST(AttentionRoundsTest, CapsKeepTheReferencesEdges) {
  for (const Law law : testing::kLaws) {
    for (const DrawWay way : {DrawWay::kEvents, DrawWay::kRule}) {
      Shape shape;
      shape.lengths = {way == DrawWay::kRule ? 800 : 90, 60};  // by events, pair by pair
      shape.heads = 2;
      shape.mean_rate = way == DrawWay::kRule ? 0.02 : law == Law::kPoissonMulti ? 3.0 : 0.3;
      Case made(shape);
      DrawnRows drawn = Drawn(law);
      drawn.self_loops = way == DrawWay::kEvents;
      drawn.way = way;
      made.AddProblems(drawn, 0);
      std::get<DrawnRows>(made.problems[1].pattern).way = DrawWay::kPairs;
      made.AskForAll();
      const edgewise::testing::Outcome all = edgewise::testing::RunReference(made, {});
      uint64_t edges = 0;
      for (const AttentionReport& report : all.reports) {
        for (const HeadReport& head : report.heads) edges += head.edges;
      }
      for (const uint64_t most : {edges / 20, edges * 84 / 100, edges * 88 / 100, edges}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(most) + " of " +
                     std::to_string(edges));
        const edgewise::testing::Outcome want = edgewise::testing::RunReference(made, {EdgeCap{.max_edges = most}});
        for (const int64_t bytes : {kMostEdgeBytes, int64_t{1} << 18}) {
          const Result got = RunIn(made, false, most, bytes);
          EXPECT_EQ(got.capped, most < edges);
          for (size_t p = 0; p < got.reports.size(); ++p) {
            for (size_t h = 0; h < got.reports[p].heads.size(); ++h) {
              const HeadReport &one = got.reports[p].heads[h], &other = want.reports[p].heads[h];
              EXPECT_EQ(one.graph.row_offsets, other.graph.row_offsets);
              EXPECT_EQ(one.graph.keys, other.graph.keys);
              EXPECT_EQ(one.graph.multiplicity, other.graph.multiplicity);
            }
          }
        }
      }
    }
  }
}

uint64_t StepsOf(Case& made, uint64_t cap, int64_t bytes) {
  const uint64_t before = emulator::Steps();
  RunIn(made, false, cap, bytes);
  return emulator::Steps() - before;
}

// All that is asked for later is in memory, after any number of rounds that find nothing.
TEST(AttentionRoundsTest, ALayerThatFitsIsDrawnOnce) {
  Shape shape;
  shape.lengths = {500};
  shape.head_dim = 8;
  shape.mean_rate = 0.4;
  Case made(shape);
  DrawnRows drawn = Drawn(Law::kPoissonSet);
  drawn.way = DrawWay::kEvents;
  made.AddProblems(drawn, 0);
  made.problems[0].report->wanted.graph = true;
  constexpr int64_t kEnough = 3 << 19;  // for what is drawn, not for all that could be
  for (const uint64_t cap : {uint64_t{40000}, kNoCap - 1}) {
    EXPECT_LT(StepsOf(made, cap, kEnough), StepsOf(made, cap, kMostEdgeBytes) * 4 / 3);
    ExpectSame(RunIn(made, false, cap, kEnough), RunIn(made, false, cap, kMostEdgeBytes));
  }
}

// Of the edges under a small cap most are not drawn.
TEST(AttentionRoundsTest, ACapsDrawEndsEarly) {
  Shape shape;
  shape.lengths = {500};
  shape.head_dim = 8;
  shape.mean_rate = 0.4;
  Case made(shape);
  DrawnRows drawn = Drawn(Law::kPoissonSet);
  drawn.way = DrawWay::kEvents;
  made.AddProblems(drawn, 0);
  EXPECT_LT(StepsOf(made, 3000, kMostEdgeBytes), StepsOf(made, 140000, kMostEdgeBytes) / 2);
}

// The rows that a cap's sample looks at have ten times the edges of others, so that the first age is far too low.
TEST(AttentionRoundsTest, ASampleThatPromisesTooMuchIsFollowedByAWholeDraw) {
  Shape shape;
  shape.lengths = {512};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 0.02;
  Case made(shape);
  for (uint32_t item = 0; item < 512 / kRowsPerItem; ++item) {
    const uint32_t row = item * kRowsPerItem + (item * 0x9E3779B9u >> 16) % kRowsPerItem;  // as CountSample
    for (int c = 0; c < shape.rank; ++c) made.x[row * shape.rank + c] *= 10.0f;
    made.query_bound[row] *= 10.0f;
  }
  DrawnRows drawn = Drawn(Law::kBernoulli);
  drawn.way = DrawWay::kEvents;
  made.AddProblems(drawn, 0);
  made.AskForAll();
  const uint64_t most = edgewise::testing::RunReference(made, {}).reports[0].heads[0].edges * 9 / 10;
  const edgewise::testing::Outcome want = edgewise::testing::RunReference(made, {EdgeCap{.max_edges = most}});
  const Result got = RunIn(made, false, most, kMostEdgeBytes);
  EXPECT_EQ(got.reports[0].heads[0].edges, most);
  EXPECT_EQ(got.reports[0].heads[0].graph.keys, want.reports[0].heads[0].graph.keys);
}

// Beyond what 16 bits count, with more pairs than the pool has bits, and many rounds that find nothing.
TEST(AttentionRoundsTest, ASequenceOf70000TokensHasTheReferencesEdges) {
  Shape shape;
  shape.lengths = {70000};
  shape.heads = 1;
  shape.head_dim = 8;
  shape.rank = 16;
  shape.mean_rate = 2.0 / 70000.0;
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  made.problems[0].report->wanted.graph = true;
  HeadEdges want;
  want.row_offsets.assign(70001, 0);
  for (const reference::Edge& edge : reference::DrawEdges(made.inputs, made.problems[0], 0)) {
    want.keys.push_back(edge.key);
    ++want.row_offsets[static_cast<size_t>(edge.query) + 1];
  }
  std::partial_sum(want.row_offsets.begin(), want.row_offsets.end(), want.row_offsets.begin());
  EXPECT_GT(want.keys.size(), 100000u);
  for (const int64_t bytes : {kMostEdgeBytes, kMostEdgeBytes / 8}) {
    const Result got = RunIn(made, false, kNoCap, bytes);
    const HeadEdges& graph = got.reports[0].heads[0].graph;
    EXPECT_TRUE(graph.keys == want.keys);
    EXPECT_TRUE(graph.row_offsets == want.row_offsets);
  }
}

// The rule of events bounds the mean of a head's edges.
TEST(PlanPoolTest, TakesTheRulesShareOfAllPairs) {
  DeviceProblem problem = {};
  problem.tokens = 4096;
  problem.cap = -1;
  const auto words = [&](int64_t bytes = int64_t{1} << 50) {
    const PoolPlan plan = PlanPool({&problem, 1}, 1, bytes);
    EXPECT_EQ(plan.rounds, 1);
    return plan.words;
  };
  EXPECT_EQ(words(), 4096 * 4096 / 32) << "as bits";
  problem.self_loops = true;
  EXPECT_GT(words(), 4096 * 4096 / 33 + 4096) << "as lists";
  EXPECT_LT(words(), 4096 * 4096 / 30);
  problem.way = DrawWay::kEvents;
  EXPECT_EQ(words(), 4096 * 4096);
  problem.cap = 0;
  EXPECT_EQ(words(), 2 * 4096 * 4096);
  problem.event_head = -1;
  EXPECT_EQ(words(), 4096 * 4096 / 32);
  problem.law = Law::kPoissonMulti;
  EXPECT_EQ(words(), 4096 * 4096 / 16);
  problem.tokens = 1 << 20;  // more pairs than 32 bits count
  EXPECT_EQ(words(), int64_t{1} << 36);
  problem.kind = PatternKind::kGiven;
  EXPECT_EQ(PlanPool({&problem, 1}, 1, 1).rounds, 0);
}

TEST(PlanPoolTest, HasRoundsForAllThatCanBeDrawn) {
  DeviceProblem problem = {};
  problem.tokens = 16384;
  problem.cap = -1;
  const int64_t head = MostListWords(problem);
  PoolPlan plan = PlanPool({&problem, 1}, 64, kMostEdgeBytes);
  EXPECT_EQ(plan.words, kMostEdgeBytes / 4);
  EXPECT_FALSE(plan.splits);
  EXPECT_GE(plan.rounds, 64 * head / plan.words + 1);
  EXPECT_LE(plan.rounds, 64 * head / plan.words + 4);
  plan = PlanPool({&problem, 1}, 1, 1);  // two blocks of bits
  EXPECT_EQ(plan.words, 2 * BitsWords(problem, kTileQueries));
  EXPECT_TRUE(plan.splits);
  EXPECT_GE(plan.rounds, 16384 / kTileQueries / 2);
}

}  // namespace
}  // namespace edgewise::cuda
