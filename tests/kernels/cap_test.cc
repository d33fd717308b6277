// Edge caps on every device, of both rules of what they keep: the youngest edges, or those of the largest rates. They
// are exact, nested, without any effect where they are slack, and charged to ledgers.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "kernels/reference/reference.h"
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
constexpr CapRule kRules[] = {CapRule::kRandom, CapRule::kProbable};

EdgeCap Cap(CapRule rule, uint64_t edges) {
  EdgeCap cap;
  cap.max_edges = edges;
  cap.keep = rule;
  return cap;
}

EdgeCap Probable(uint64_t edges) { return Cap(CapRule::kProbable, edges); }

std::vector<std::pair<Law, CapRule>> LawsAndRules() {
  std::vector<std::pair<Law, CapRule>> all;
  for (const Law law : kLaws) {
    for (const CapRule rule : kRules) all.emplace_back(law, rule);
  }
  return all;
}

class CapTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, CapTest);

class CpuCapTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuCapTest);

// Sequences under one cap, some under none, and caps of both rules side by side.
TEST_P(CapTest, KeepsWhatTheReferenceKeeps) {
  for (const CapRule rule : kRules) {
    std::mt19937 random(rule == CapRule::kRandom ? 3 : 5);
    const int longest = Sized(150, 90);
    for (int round = 0; round < Sized(50, 12); ++round) {
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
      if (rule == CapRule::kProbable) drawn.way = kWays[random() % 2];
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
        caps[c] = Cap(rule, forced + random() % (EdgesUnder(made, free, c) - forced + 2));
      }
      if (round % 3 == 0) caps[1].keep = CapRule::kRandom;
      ExpectReference(made, caps);
      if (HasFailure()) return;
    }
  }
}

// Drawn freely, under tight caps and under one far above, and not drawn.
TEST_P(CapTest, InPartsTheBytesAreTheSame) {
  for (const auto& [law, rule] : LawsAndRules()) {
    Shape shape;
    shape.lengths = {Sized(300, 90), Sized(150, 70)};
    Case made(shape);
    for (const int32_t cap : {-1, 0, 1, 2}) {
      made.AddProblems(DrawnRows{.law = law, .self_loops = true, .key = {1, static_cast<uint32_t>(cap + 1)}}, cap);
    }
    made.AddProblems(AllPairs{.causal = true});
    made.AskForAll();
    const std::vector<EdgeCap> caps = {Cap(rule, 900), Cap(rule, 1u << 20), EdgeCap{2500}};
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

TEST_P(CapTest, IsExactAtOneBelowAtAndOneAboveTheFreeUse) {
  struct Draw {
    CapRule rule;
    DrawWay way;
    double rate;
  };
  for (const Law law : kLaws) {
    for (const auto& [rule, way, rate] :
         {Draw{CapRule::kRandom, DrawWay::kRule, 0.02}, Draw{CapRule::kRandom, DrawWay::kRule, 0.5},
          Draw{CapRule::kProbable, DrawWay::kPairs, 0.5}, Draw{CapRule::kProbable, DrawWay::kEvents, 0.05}}) {
      Shape shape;
      shape.lengths = {Sized(150, 70), Sized(90, 33)};
      shape.mean_rate = rate;
      Case free_case(shape), made(shape);
      const DrawnRows drawn = {.law = law, .self_loops = true, .way = way};
      free_case.AddProblems(drawn);
      made.AddProblems(drawn, 0);
      const Outcome free = Run(free_case);
      const uint64_t edges = EdgesUnder(free_case, free, -1);
      const Outcome below = Run(made, {Cap(rule, edges - 1)});
      EXPECT_EQ(EdgesUnder(made, below, 0), edges - 1);
      EXPECT_TRUE(below.caps[0].capped);
      for (const uint64_t slack : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, kNoCap - edges}) {
        const Outcome at = Run(made, {Cap(rule, edges + slack)});
        EXPECT_EQ(EdgesUnder(made, at, 0), edges);
        EXPECT_FALSE(at.caps[0].capped);
        EXPECT_TRUE(SameBytes(at.out, free.out)) << slack;
      }
    }
  }
}

TEST_P(CapTest, RaisingTheCapOnlyAddsEdges) {
  Shape shape;
  shape.lengths = {Sized(120, 60), Sized(60, 20)};
  shape.mean_rate = 0.2;
  Case made(shape);
  made.AddProblems(DrawnRows{.law = Law::kPoissonSet, .self_loops = true}, 0);
  made.AskForAll();
  for (const CapRule rule : kRules) {
    std::set<std::tuple<size_t, size_t, size_t, int32_t>> previous;
    for (uint64_t cap = ForcedUnder(made, 0); cap < 7000; cap = cap * 4 / 3) {
      const Outcome outcome = Run(made, {Cap(rule, cap)});
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
      if (outcome.caps[0].capped) {
        EXPECT_EQ(edges.size(), cap);
      }
      EXPECT_TRUE(std::includes(edges.begin(), edges.end(), previous.begin(), previous.end())) << cap;
      previous = edges;
    }
  }
}

// The estimate of the edges is far too high here: every product is clamped.
TEST_P(CapTest, IsExactWhereRatesAreClamped) {
  const int n = Sized(200, 70);
  Shape shape;
  shape.lengths = {n};
  shape.heads = 1;
  shape.mean_rate = 20.0;
  Case made(shape);
  made.AddProblems(DrawnRows{}, 0);
  made.AskForAll();
  const uint64_t pairs = static_cast<uint64_t>(n) * n;
  for (const uint64_t cap : {uint64_t{0}, uint64_t{1}, pairs / 800, pairs / 40, pairs / 2, pairs - 1, pairs}) {
    ExpectReference(made, {EdgeCap{cap}});
  }
}

// Enough edges that blocks are drawn by tiles and kept as bits, with guesses of the age that are near and far off.
TEST_P(CapTest, IsExactWhereEdgesAreMany) {
  for (const double rate : {0.3, 0.9, 3.0}) {
    for (const double spread : {0.1, 2.0}) {
      for (const Law law : kLaws) {
        Shape shape;
        shape.lengths = {Sized(200, 50)};
        shape.mean_rate = rate;
        shape.spread = spread;
        shape.gap_share = spread > 1.0 ? 0.1 : 0.0;
        Case made(shape);
        made.AddProblems(DrawnRows{.law = law, .self_loops = spread > 1.0}, 0);
        made.AskForAll();
        const uint64_t edges = EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0), forced = ForcedUnder(made, 0);
        for (const double share : {0.03, 0.5, 0.97}) {
          SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(share));
          ExpectReference(made, {EdgeCap{forced + static_cast<uint64_t>(share * static_cast<double>(edges - forced))}});
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The guesses of the age are far too low, in a head long enough for bounds by key: a tenth of the pairs of whole blocks
// are open then.
TEST_P(CpuCapTest, OpenPairsOfWholeBlocksHaveRoom) {
  Shape shape;
  shape.lengths = {2048};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 3.0;
  shape.spread = 8.0;
  Case made(shape);
  made.AddProblems(DrawnRows{}, 0);
  made.AskForAll();
  for (const uint64_t cap : {uint64_t{1'000'000}, uint64_t{1'350'000}, uint64_t{1'500'000}}) {
    ExpectReference(made, {EdgeCap{cap}});
  }
}

// The same sequence several times with the same random key: each age as often, the order decides.
TEST_P(CapTest, EdgesOfOneAgeAreKeptInTheOrderOfProblemHeadQueryAndKey) {
  Shape shape;
  shape.lengths = {24};
  shape.mean_rate = 0.5;
  Case made(shape);
  for (int copy = 0; copy < 5; ++copy) made.AddProblems(DrawnRows{.law = Law::kPoissonMulti}, 0);
  made.AskForAll();
  for (uint64_t cap = 501; cap < 508; ++cap) ExpectReference(made, {EdgeCap{cap}});
}

// One cap a sequence, three more than the 128 that a GPU settles at once.
TEST_P(CapTest, ManyCapsAreKeptApart) {
  constexpr int kCaps = 131;
  Shape shape;
  shape.lengths.assign(kCaps, 9);
  shape.heads = 1;
  shape.mean_rate = 0.4;
  Case made(shape);
  made.AddProblems(DrawnRows{.key = {.seed = 3}}, 0);
  made.AskForAll();
  std::vector<EdgeCap> caps;
  for (int32_t c = 0; c < kCaps; ++c) {
    made.problems[c].cap = c;
    caps.push_back(EdgeCap{static_cast<uint64_t>(c % 30)});
  }
  ExpectReference(made, caps);
}

TEST_P(CpuCapTest, ThreadsChangeNoByte) {
  for (const auto& [law, rule] : LawsAndRules()) {
    if (law == Law::kPoissonSet) continue;
    for (const double rate : {0.02, 0.9}) {
      Shape shape;
      shape.lengths = {500, 333, 1, 96};  // work for several threads, and too little for a second
      shape.mean_rate = rate;
      Case made(shape);
      made.AddProblems(DrawnRows{.law = law}, 0);
      const EdgeCap cap = Cap(rule, EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0) / 2);
      const Outcome one = RunOn(**Make(1), made, {cap});
      EXPECT_TRUE(one.caps[0].capped);
      for (const int threads : {2, 4}) {
        EXPECT_TRUE(SameBytes(one.out, RunOn(**Make(threads), made, {cap}).out)) << threads << " " << rate;
      }
    }
  }
}

TEST_P(CapTest, PatternsThatAreNotDrawnUseTheAllowanceButDropNothing) {
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
    for (const uint64_t left : {100, 0}) {
      Case made(shape);
      made.AddProblems(pattern, 0);
      made.AddProblems(DrawnRows{}, 0);
      made.AskForAll();
      ExpectReference(made, {EdgeCap{count + left}});
      const auto ledger = *backend_->MakeLedger(count + left);
      EdgeCap cap;
      cap.ledger = ledger.get();
      cap.share = {kWholeShare, 0, 0};
      EXPECT_EQ(EdgesUnder(made, Run(made, {cap}), 0), count + left);
      EXPECT_EQ(*backend_->Remaining(*ledger), 0u);
    }
  }
}

// Layers of one sample take from its ledger what they use.
TEST_P(CapTest, LedgersPassFromCallToCall) {
  for (const auto& [budget, rule] : {std::pair(uint64_t{2500}, CapRule::kRandom),
                                     {2500, CapRule::kProbable},
                                     {4000, CapRule::kRandom},
                                     {4000, CapRule::kProbable},
                                     {100000, CapRule::kRandom},
                                     {100000, CapRule::kProbable}}) {
    uint64_t remaining[2] = {budget, budget / 2};
    std::unique_ptr<EdgeLedger> ledgers[2] = {*backend_->MakeLedger(budget), *backend_->MakeLedger(budget / 2)};
    const auto copy = *backend_->CopyLedger(*ledgers[0]);
    for (uint32_t layer = 0; layer < 3; ++layer) {
      Shape shape;
      shape.lengths = {40, 25};
      shape.mean_rate = 0.3;
      shape.seed = layer;
      Case made(shape);
      made.AddProblems(DrawnRows{.self_loops = true, .key = {.layer = layer}}, 0);
      made.AddProblems(DrawnRows{.key = {.sample = 1, .layer = layer}}, 1);
      if (layer == 0) made.AddProblems(AllPairs{true}, 0);
      made.AskForAll();
      const uint64_t fraction = kWholeShare / (3 - layer) + (layer < 2 ? 1 : 0);
      const uint64_t forced = 2 * 65, undrawn = layer == 0 ? 2 * (40 * 41 / 2 + 25 * 26 / 2) : 0;
      const BudgetShare shares[2] = {{fraction, undrawn + forced, forced * (2 - layer)}, {fraction, 0, 0}};
      const uint64_t most[2] = {kNoCap, 90};
      std::vector<EdgeCap> caps(2), allowed(2);
      for (int c = 0; c < 2; ++c) {
        caps[c] = Cap(rule, most[c]);
        caps[c].ledger = ledgers[c].get();
        caps[c].share = shares[c];
        allowed[c] = Cap(rule, std::min(most[c], LayerAllowance(remaining[c], shares[c])));
      }
      const Outcome got = Run(made, caps), want = RunReference(made, allowed);
      ExpectSameReports(got, want, GetParam().weights, GetParam().expected);
      for (int32_t c = 0; c < 2; ++c) {
        remaining[c] -= EdgesUnder(made, want, c);
        EXPECT_EQ(*backend_->Remaining(*ledgers[c]), remaining[c]) << layer << " " << c;
      }
    }
    EXPECT_EQ(*backend_->Remaining(*copy), budget);
  }
}

// All rates are equal, or clamped to 1, so that the place of an edge alone decides; with more edges of one rate than a
// GPU lists at once.
TEST_P(CapTest, EdgesOfOneRateAreKeptInTheOrderOfProblemHeadQueryAndKey) {
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

// The graph of a capped call, given back, has its bytes: multiplicities of dropped edges leave no trace.
TEST_P(CapTest, GraphsGivenBackHaveTheSameBytes) {
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

// So many edges that those which are beaten are dropped on the way.
TEST_P(CpuCapTest, ManyEdgesAreDroppedOnTheWay) {
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

}  // namespace
}  // namespace edgewise
