// Edge caps: exact, nested, and without any effect where they are slack.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "kernels/reference.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::Case;
using testing::LargestDifference;
using testing::Outcome;
using testing::RunCpu;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

uint64_t EdgesOf(const Outcome& outcome) {
  uint64_t edges = 0;
  for (const AttentionReport& report : outcome.reports) {
    for (const HeadReport& head : report.heads) edges += head.edges;
  }
  return edges;
}

void ExpectSameGraphs(const Outcome& got, const Outcome& want, const std::string& what) {
  for (size_t p = 0; p < want.reports.size(); ++p) {
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadEdges& a = got.reports[p].heads[h].graph;
      const HeadEdges& b = want.reports[p].heads[h].graph;
      ASSERT_EQ(a.row_offsets, b.row_offsets) << what;
      ASSERT_EQ(a.keys, b.keys) << what;
      ASSERT_EQ(a.multiplicity, b.multiplicity) << what;
    }
  }
  for (size_t c = 0; c < want.caps.size(); ++c) ASSERT_EQ(got.caps[c].capped, want.caps[c].capped) << what;
}

TEST(CapTest, KeepsTheForcedAndTheYoungestAsTheReferenceDoes) {
  std::mt19937 random(3);
  for (int round = 0; round < 80; ++round) {
    Shape shape;
    shape.seed = static_cast<uint32_t>(round);
    shape.lengths = {static_cast<int>(1 + random() % 150), static_cast<int>(1 + random() % 150)};
    shape.heads = static_cast<int>(1 + random() % 3);
    const double rates[] = {0.01, 0.1, 0.5, 1.0, 2.0};
    shape.mean_rate = rates[random() % 5];
    shape.spread = random() % 2 == 0 ? 0.2 : 1.0;
    shape.gap_share = random() % 3 == 0 ? 0.3 : 0.0;
    Case attention_case(shape);
    DrawnRows drawn;
    drawn.law = static_cast<Law>(random() % 3);
    drawn.exploration = random() % 3 == 0 ? 0.01f : 0.0f;
    drawn.self_loops = random() % 3 == 0;
    drawn.local_window = random() % 4 == 0 ? 4 : 0;
    drawn.key.seed = random();
    attention_case.AddProblems(drawn, 0);
    drawn.key.sample = 1;
    attention_case.AddProblems(drawn, 1);
    attention_case.problems[3].cap = -1;
    attention_case.AskForAll();
    const uint64_t free_edges = EdgesOf(RunReference(attention_case, {EdgeCap{}, EdgeCap{}}));
    std::vector<EdgeCap> caps(2);
    for (EdgeCap& cap : caps) {
      cap.max_edges = static_cast<uint64_t>(attention_case.inputs.num_heads) * 300 * 6 +  // above what is forced
                      random() % (free_edges + 1);
      if (drawn.local_window == 0) cap.max_edges = 300 * 3 + random() % (free_edges / 2 + 1);
      if (drawn.local_window == 0 && !drawn.self_loops) cap.max_edges = random() % (free_edges / 2 + 1);
    }
    const Outcome want = RunReference(attention_case, caps);
    for (Isa isa : AvailableIsas()) {
      const Outcome got = RunCpu(attention_case, isa, 2, caps);
      ExpectSameGraphs(got, want, "round " + std::to_string(round) + " " + IsaName(isa));
      if (HasFatalFailure()) return;
      EXPECT_LE(LargestDifference(got.out, want.out), 1e-5) << round << " " << IsaName(isa);
    }
  }
}

TEST(CapTest, IsExactAtOneBelowAtAndOneAboveTheFreeUse) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    for (const double rate : {0.02, 0.5}) {
      Shape shape;
      shape.lengths = {150, 90};
      shape.mean_rate = rate;
      Case free_case(shape), capped_case(shape);
      DrawnRows drawn;
      drawn.law = law;
      drawn.self_loops = true;
      free_case.AddProblems(drawn);
      capped_case.AddProblems(drawn, 0);
      for (Isa isa : AvailableIsas()) {
        const Outcome free_outcome = RunCpu(free_case, isa, 2);
        const uint64_t edges = EdgesOf(free_outcome);
        const Outcome below = RunCpu(capped_case, isa, 2, {EdgeCap{edges - 1}});
        EXPECT_EQ(EdgesOf(below), edges - 1);
        EXPECT_TRUE(below.caps[0].capped);
        for (const uint64_t slack : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, kNoCap - edges}) {
          const Outcome outcome = RunCpu(capped_case, isa, 2, {EdgeCap{edges + slack}});
          EXPECT_EQ(EdgesOf(outcome), edges);
          EXPECT_FALSE(outcome.caps[0].capped);
          EXPECT_TRUE(SameBytes(outcome.out, free_outcome.out)) << slack << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST(CapTest, RaisingTheCapOnlyAddsEdges) {
  Shape shape;
  shape.lengths = {120, 60};
  shape.mean_rate = 0.2;
  Case attention_case(shape);
  DrawnRows drawn;
  drawn.self_loops = true;
  attention_case.AddProblems(drawn, 0);
  attention_case.AskForAll();
  for (Isa isa : AvailableIsas()) {
    std::set<std::tuple<size_t, size_t, size_t, int32_t>> previous;
    for (uint64_t cap = 360; cap < 7000; cap = cap * 5 / 4) {
      const Outcome outcome = RunCpu(attention_case, isa, 2, {EdgeCap{cap}});
      std::set<std::tuple<size_t, size_t, size_t, int32_t>> edges;
      for (size_t p = 0; p < outcome.reports.size(); ++p) {
        for (size_t h = 0; h < outcome.reports[p].heads.size(); ++h) {
          const HeadEdges& graph = outcome.reports[p].heads[h].graph;
          for (size_t i = 0; i + 1 < graph.row_offsets.size(); ++i) {
            for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e)
              edges.insert({p, h, i, graph.keys[e]});
          }
        }
      }
      if (outcome.caps[0].capped) {
        EXPECT_EQ(edges.size(), cap);
      }
      EXPECT_TRUE(std::includes(edges.begin(), edges.end(), previous.begin(), previous.end())) << cap;
      previous = edges;
    }
  }
}

// The estimate of the edges is far too high here: every product is clamped.
TEST(CapTest, IsExactWhereRatesAreClamped) {
  Shape shape;
  shape.lengths = {200};
  shape.heads = 1;
  shape.mean_rate = 20.0;
  Case attention_case(shape);
  attention_case.AddProblems(DrawnRows{}, 0);
  attention_case.AskForAll();
  for (const uint64_t cap : {0u, 1u, 50u, 1000u, 20000u, 39999u, 40000u}) {
    const Outcome want = RunReference(attention_case, {EdgeCap{cap}});
    for (Isa isa : AvailableIsas()) {
      const Outcome got = RunCpu(attention_case, isa, 2, {EdgeCap{cap}});
      ExpectSameGraphs(got, want, std::to_string(cap));
      EXPECT_LE(EdgesOf(got), cap);
      if (HasFatalFailure()) return;
    }
  }
}

// Enough edges that blocks are drawn by tiles and kept as bits, with guesses of the age that are near and far off.
TEST(CapTest, IsExactWhereEdgesAreMany) {
  for (const double rate : {0.3, 0.9, 3.0}) {
    for (const double spread : {0.1, 2.0}) {
      for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
        Shape shape;
        shape.lengths = {330};
        shape.heads = 2;
        shape.mean_rate = rate;
        shape.spread = spread;
        shape.gap_share = spread > 1.0 ? 0.1 : 0.0;
        Case attention_case(shape);
        DrawnRows drawn;
        drawn.law = law;
        drawn.self_loops = spread > 1.0;
        attention_case.AddProblems(drawn, 0);
        attention_case.AskForAll();
        const uint64_t edges = EdgesOf(RunReference(attention_case, {EdgeCap{}}));
        for (const double share : {0.03, 0.5, 0.97}) {
          const EdgeCap cap{660 + static_cast<uint64_t>(share * static_cast<double>(edges - 660))};
          const Outcome want = RunReference(attention_case, {cap});
          for (Isa isa : AvailableIsas()) {
            const Outcome got = RunCpu(attention_case, isa, 2, {cap});
            ExpectSameGraphs(got, want, std::to_string(rate) + " " + std::to_string(share) + " " + IsaName(isa));
            if (HasFatalFailure()) return;
            EXPECT_LE(LargestDifference(got.out, want.out), 1e-5) << rate << " " << share << " " << IsaName(isa);
          }
        }
      }
    }
  }
}

TEST(CapTest, ThreadsChangeNoByte) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
    for (const double rate : {0.02, 0.9}) {
      Shape shape;
      shape.lengths = {500, 333, 1, 96};
      shape.mean_rate = rate;
      Case attention_case(shape);
      DrawnRows drawn;
      drawn.law = law;
      attention_case.AddProblems(drawn, 0);
      const uint64_t edges = EdgesOf(RunReference(attention_case, {EdgeCap{}}));
      for (Isa isa : AvailableIsas()) {
        const Outcome one = RunCpu(attention_case, isa, 1, {EdgeCap{edges / 2}});
        EXPECT_TRUE(one.caps[0].capped);
        for (const int threads : {2, 4}) {
          const Outcome many = RunCpu(attention_case, isa, threads, {EdgeCap{edges / 2}});
          EXPECT_TRUE(SameBytes(one.out, many.out)) << threads << " " << rate << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST(CapTest, PatternsThatAreNotDrawnUseTheAllowanceButDropNothing) {
  Shape shape;
  shape.lengths = {30};
  shape.heads = 1;
  shape.mean_rate = 0.5;
  HeadEdges edges;
  for (int32_t i = 0; i <= 30; ++i) edges.row_offsets.push_back(2 * i);
  for (int32_t i = 0; i < 30; ++i) edges.keys.insert(edges.keys.end(), {i / 2, 29});
  const std::vector<HeadEdges> heads = {edges};
  GroupedKeys grouped{{0, 10, 30}, {0, 3, 8}, {0, 5, 9, 2, 4, 12, 20, 29}, true};
  const std::pair<AttentionPattern, uint64_t> patterns[] = {
      {AllPairs{}, 900}, {AllPairs{true}, 465}, {ExplicitEdges{&heads}, 60}, {grouped, 85}};
  for (const auto& [pattern, count] : patterns) {
    Case attention_case(shape);
    attention_case.AddProblems(pattern, 0);
    attention_case.AddProblems(DrawnRows{}, 0);
    attention_case.AskForAll();
    const EdgeCap cap{count + 100};
    const Outcome want = RunReference(attention_case, {cap});
    for (Isa isa : AvailableIsas()) {
      const Outcome got = RunCpu(attention_case, isa, 1, {cap});
      ExpectSameGraphs(got, want, std::to_string(count) + IsaName(isa));
      EXPECT_EQ(EdgesOf(got), cap.max_edges);
    }
  }
}

}  // namespace
}  // namespace edgewise
