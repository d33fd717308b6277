// Caps that keep the edges of the largest rates (KeepRule::kProbable), on every device: those of the reference, nested,
// of the free draw's bytes where they are slack, and charged to ledgers.
#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "kernels/reference.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::EdgesUnder;
using testing::ForcedUnder;
using testing::kLaws;
using testing::Outcome;
using testing::RunOn;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

constexpr DrawWay kWays[] = {DrawWay::kPairs, DrawWay::kEvents};

class KeepTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, KeepTest);

class CpuKeepTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuKeepTest);

EdgeCap Probable(uint64_t edges) {
  EdgeCap cap;
  cap.max_edges = edges;
  cap.keep = KeepRule::kProbable;
  return cap;
}

// Caps of both rules side by side, sequences under one cap, and some under none.
TEST_P(KeepTest, KeepsTheForcedAndTheMostProbableAsTheReferenceDoes) {
  std::mt19937 random(5);
  const int longest = Sized(150, 90);
  for (int round = 0; round < Sized(60, 12); ++round) {
    SCOPED_TRACE(round);
    Shape shape;
    shape.seed = static_cast<uint32_t>(round);
    shape.lengths = {static_cast<int>(1 + random() % longest), static_cast<int>(1 + random() % longest), 1};
    shape.heads = static_cast<int>(1 + random() % 3);
    const double rates[] = {0.01, 0.1, 0.5, 1.0, 2.0};
    shape.mean_rate = rates[random() % 5];
    shape.spread = random() % 2 == 0 ? 0.2 : 1.0;
    shape.gap_share = random() % 3 == 0 ? 0.3 : 0.0;
    Case made(shape);
    DrawnRows drawn;
    drawn.law = static_cast<Law>(random() % 3);
    drawn.way = kWays[random() % 2];
    drawn.exploration = random() % 3 == 0 ? 0.01f : 0.0f;
    drawn.self_loops = random() % 3 == 0;
    drawn.local_window = random() % 4 == 0 ? 4 : 0;
    drawn.key.seed = random();
    made.AddProblems(drawn, 0);
    drawn.key.sample = 1;
    made.AddProblems(drawn, 1);
    made.problems[3].cap = 2;
    made.problems[4].cap = -1;
    made.AskForAll();
    const Outcome free = RunReference(made, std::vector<EdgeCap>(3));
    std::vector<EdgeCap> caps(3);
    for (int32_t c = 0; c < 3; ++c) {
      const uint64_t forced = ForcedUnder(made, c);
      caps[c] = Probable(forced + random() % (EdgesUnder(made, free, c) - forced + 2));
    }
    if (round % 3 == 0) caps[1].keep = KeepRule::kRandom;
    ExpectReference(made, caps);
    if (HasFailure()) return;
  }
}

TEST_P(KeepTest, ASlackCapHasTheBytesOfTheFreeDraw) {
  for (const Law law : kLaws) {
    for (const DrawWay way : kWays) {
      Shape shape;
      shape.lengths = {Sized(150, 70), Sized(90, 33)};
      shape.mean_rate = way == DrawWay::kEvents ? 0.05 : 0.5;
      Case free_case(shape), made(shape);
      const DrawnRows drawn = {.law = law, .self_loops = true, .way = way};
      free_case.AddProblems(drawn);
      made.AddProblems(drawn, 0);
      const Outcome free = Run(free_case);
      const uint64_t edges = EdgesUnder(free_case, free, -1);
      const Outcome below = Run(made, {Probable(edges - 1)});
      EXPECT_EQ(EdgesUnder(made, below, 0), edges - 1);
      EXPECT_TRUE(below.caps[0].capped);
      for (const uint64_t slack : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, kNoCap - edges}) {
        const Outcome at = Run(made, {Probable(edges + slack)});
        EXPECT_EQ(EdgesUnder(made, at, 0), edges);
        EXPECT_FALSE(at.caps[0].capped);
        EXPECT_TRUE(SameBytes(at.out, free.out)) << slack;
      }
    }
  }
}

// All rates are equal, or clamped to 1, so that the place of an edge alone decides; with more edges of one rate than a
// GPU lists at once.
TEST_P(KeepTest, EdgesOfOneRateAreKeptInTheOrderOfProblemHeadQueryAndKey) {
  for (const double rate : {0.5, 30.0}) {
    Shape shape;
    shape.lengths = {Sized(110, 80), 31};
    shape.heads = 2;
    shape.mean_rate = rate;
    shape.spread = 0.0;
    Case made(shape);
    made.AddProblems(DrawnRows{.law = Law::kPoissonMulti, .self_loops = true}, 0);
    made.AskForAll();
    const uint64_t edges = EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0), forced = ForcedUnder(made, 0);
    for (const uint64_t drawn : {uint64_t{0}, uint64_t{1}, (edges - forced) / 3, edges - forced - 1}) {
      ExpectReference(made, {Probable(forced + drawn)});
    }
  }
}

TEST_P(KeepTest, RaisingTheCapOnlyAddsEdges) {
  Shape shape;
  shape.lengths = {Sized(120, 60), Sized(60, 20)};
  shape.mean_rate = 0.2;
  Case made(shape);
  made.AddProblems(DrawnRows{.law = Law::kPoissonSet, .self_loops = true}, 0);
  made.AskForAll();
  std::set<std::tuple<size_t, size_t, size_t, int32_t>> previous;
  for (uint64_t cap = ForcedUnder(made, 0); cap < 7000; cap = cap * 3 / 2) {
    const Outcome outcome = Run(made, {Probable(cap)});
    std::set<std::tuple<size_t, size_t, size_t, int32_t>> edges;
    for (size_t p = 0; p < outcome.reports.size(); ++p) {
      for (size_t h = 0; h < outcome.reports[p].heads.size(); ++h) {
        const HeadEdges& graph = outcome.reports[p].heads[h].graph;
        for (size_t i = 0; i + 1 < graph.row_offsets.size(); ++i) {
          for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e) {
            edges.insert({p, h, i, graph.keys[e]});
          }
        }
      }
    }
    EXPECT_TRUE(std::includes(edges.begin(), edges.end(), previous.begin(), previous.end())) << cap;
    previous = edges;
  }
}

// Drawn freely, under tight caps of both rules and under one far above.
TEST_P(KeepTest, InPartsTheBytesAreTheSame) {
  for (const Law law : kLaws) {
    Shape shape;
    shape.lengths = {Sized(300, 90), Sized(150, 70)};
    Case made(shape);
    for (const int32_t cap : {-1, 0, 1, 2}) {
      made.AddProblems(DrawnRows{.law = law, .self_loops = true, .key = {1, static_cast<uint32_t>(cap + 1)}}, cap);
    }
    made.AskForAll();
    const std::vector<EdgeCap> caps = {Probable(900), Probable(1u << 20), EdgeCap{2500}};
    const Outcome whole = Run(made, caps);
    EXPECT_TRUE(whole.caps[0].capped);
    EXPECT_FALSE(whole.caps[1].capped);
    for (const double share : {0.001, 0.1, 0.4}) {
      const Outcome parts = RunOn(*backend_, made, caps, share);
      EXPECT_TRUE(SameBytes(parts.out, whole.out)) << share;
      ExpectSameReports(parts, whole, 0.0, 0.0);
    }
  }
}

// The graph of a capped call, given back, has its bytes: multiplicities of dropped edges leave no trace.
TEST_P(KeepTest, GraphsGivenBackHaveTheSameBytes) {
  for (const Law law : kLaws) {
    for (const double rate : {0.1, 0.9}) {
      Shape shape;
      shape.lengths = {Sized(130, 70)};
      shape.mean_rate = rate;
      Case made(shape);
      made.AddProblems(DrawnRows{.law = law}, 0);
      made.AskForAll();
      const uint64_t edges = EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0);
      for (const uint64_t cap : {uint64_t{3}, edges / 2, edges - 1}) {
        const Outcome outcome = Run(made, {Probable(cap)});
        const std::vector<std::vector<HeadEdges>> graphs = GraphsOf(outcome);
        Case given(shape);
        given.AddProblems(ExplicitEdges{.heads = &graphs[0]});
        EXPECT_TRUE(SameBytes(Run(given).out, outcome.out)) << rate << " " << cap;
      }
    }
  }
}

// Layers of one sample take from its ledger what they use.
TEST_P(KeepTest, LedgersPassFromCallToCall) {
  for (const uint64_t budget : {uint64_t{2500}, uint64_t{4000}, uint64_t{100000}}) {
    uint64_t remaining = budget;
    const std::unique_ptr<EdgeLedger> ledger = *backend_->MakeLedger(budget);
    for (uint32_t layer = 0; layer < 3; ++layer) {
      Shape shape;
      shape.lengths = {40, 25};
      shape.mean_rate = 0.3;
      shape.seed = layer;
      Case made(shape);
      made.AddProblems(DrawnRows{.self_loops = true, .key = {.layer = layer}}, 0);
      if (layer == 0) made.AddProblems(AllPairs{true}, 0);
      made.AskForAll();
      const uint64_t fraction = kWholeShare / (3 - layer) + (layer < 2 ? 1 : 0);
      const uint64_t forced = 2 * 65, undrawn = layer == 0 ? 2 * (40 * 41 / 2 + 25 * 26 / 2) : 0;
      EdgeCap cap = Probable(kNoCap);
      cap.ledger = ledger.get();
      cap.share = {fraction, undrawn + forced, forced * (2 - layer)};
      const EdgeCap allowed = Probable(LayerAllowance(remaining, cap.share));
      const Outcome got = Run(made, {cap}), want = RunReference(made, {allowed});
      ExpectSameReports(got, want, GetParam().weights, GetParam().expected);
      remaining -= EdgesUnder(made, want, 0);
      EXPECT_EQ(*backend_->Remaining(*ledger), remaining) << layer;
    }
  }
}

// So many edges that those which are beaten are dropped on the way.
TEST_P(CpuKeepTest, ManyEdgesAreDroppedOnTheWay) {
  for (const Law law : kLaws) {
    for (const double spread : {0.0, 0.5}) {
      Shape shape;
      shape.lengths = {300, 600};
      shape.heads = 1;
      shape.mean_rate = 0.4;
      shape.spread = spread;
      Case made(shape);
      made.AddProblems(DrawnRows{.law = law, .local_window = 2}, 0);
      made.AskForAll();
      for (const uint64_t cap : {uint64_t{900 * 3 + 5}, uint64_t{40000}}) ExpectReference(made, {Probable(cap)});
      if (HasFailure()) return;
    }
  }
}

TEST_P(CpuKeepTest, ThreadsChangeNoByte) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
    for (const double rate : {0.02, 0.9}) {
      Shape shape;
      shape.lengths = {500, 333, 1, 96};
      shape.mean_rate = rate;
      Case made(shape);
      made.AddProblems(DrawnRows{.law = law}, 0);
      const EdgeCap cap = Probable(EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0) / 2);
      const Outcome one = RunOn(**Make(1), made, {cap});
      EXPECT_TRUE(one.caps[0].capped);
      for (const int threads : {2, 4}) {
        EXPECT_TRUE(SameBytes(one.out, RunOn(**Make(threads), made, {cap}).out)) << threads << " " << rate;
      }
    }
  }
}

}  // namespace
}  // namespace edgewise
