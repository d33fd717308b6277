// Heads that are drawn by events: on every device the edges of the definition (kernels/draw/events.h), with pads,
// forced edges, heavy queries and keys, multiplicities and caps, and for a graph that is given back the same bytes.
#include "kernels/draw/events.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::Outcome;
using testing::Shape;

class EventsTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, EventsTest);

// A case whose keys, and less so queries, differ much in size: some are heavy.
void MakeHot(Case& made, double spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const int rank = made.inputs.memberships.rank;
  const auto stretch = [&](std::vector<float>& rows, std::vector<float>& bounds, double by) {
    for (size_t i = 0; i < bounds.size(); ++i) {
      const auto factor = static_cast<float>(std::exp(by * normal(random)));
      bounds[i] *= factor;
      for (int t = 0; t < rank; ++t) rows[i * rank + t] *= factor;
    }
  };
  stretch(made.y, made.key_bound, spread);
  stretch(made.x, made.query_bound, spread / 2);
}

struct Random {
  std::mt19937 engine;
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[engine() % values.size()];
  }
};

TEST_P(EventsTest, GiveTheEdgesOfTheDefinition) {
  for (int round = 0; round < Sized(40, 8); ++round) {
    SCOPED_TRACE(round);
    Random random{std::mt19937(static_cast<uint32_t>(round))};
    Shape shape;
    shape.seed = static_cast<uint32_t>(round);
    const int longest = Sized(130, 60);
    for (int s = 0; s < 2; ++s) shape.lengths.push_back(1 + static_cast<int>(random.engine() % longest));
    shape.rank = random.OneOf({16, 32, 48, 128});
    shape.mean_rate = random.OneOf({0.005, 0.05, 0.2, 0.6});
    shape.spread = random.OneOf({0.2, 1.0});
    shape.gap_share = random.OneOf({0.0, 0.0, 0.3});
    Case made(shape);
    if (round % 3 == 0) MakeHot(made, 1.0, shape.seed);
    DrawnRows drawn;
    drawn.way = DrawWay::kEvents;
    drawn.law = random.OneOf({Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti});
    drawn.exploration = random.OneOf({0.0f, 0.0f, 0.01f, 0.1f});
    drawn.self_loops = random.OneOf({false, true});
    drawn.local_window = random.OneOf({0, 0, 1, 9, 60});
    drawn.key = {random.engine(), static_cast<uint32_t>(round), 7, 1};
    uint64_t edges = 0;
    made.AddProblems(drawn);
    for (int p = 0; p < static_cast<int>(made.problems.size()); ++p) {
      for (int h = 0; h < made.inputs.num_heads; ++h) {
        ASSERT_TRUE(reference::UsesEvents(made.inputs, made.problems[p], h));
        edges += reference::DrawEdges(made.inputs, made.problems[p], h).size();
      }
    }
    made.AskForAll();
    ExpectReference(made);
    for (AttentionProblem& problem : made.problems) problem.cap = 0;
    for (const double share : {random.OneOf({0.0, 0.02, 0.3}), random.OneOf({0.9, 1.0, 2.0})}) {
      EdgeCap cap;
      cap.max_edges = static_cast<uint64_t>(share * static_cast<double>(edges));
      ExpectReference(made, {cap});
    }
  }
}

// A sequence that the rule draws by events, beside others that it does not.
struct Mixed {
  Mixed(int tokens, Law law, DrawWay way) : made(ShapeOf(tokens)) {
    made.AddProblems(DrawnRows{.law = law, .self_loops = true, .key = {.seed = 5}, .way = way}, -1);
    for (auto& report : made.reports) report->wanted.graph = true;
  }
  static Shape ShapeOf(int tokens) {
    Shape shape;
    shape.lengths = {tokens, 90, tokens / 2};
    shape.mean_rate = 0.006;
    shape.spread = 0.2;
    shape.gap_share = 0.1;
    return shape;
  }
  Case made;
};

TEST_P(EventsTest, AGraphGivenBackGivesTheSameBytes) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    const Mixed mixed(Sized(1200, 200), law, on_emulator_ ? DrawWay::kEvents : DrawWay::kRule);
    EXPECT_TRUE(on_emulator_ || (reference::UsesEvents(mixed.made.inputs, mixed.made.problems[0], 0) &&
                                 !reference::UsesEvents(mixed.made.inputs, mixed.made.problems[1], 0)));
    const Outcome drawn = Run(mixed.made);
    const auto graphs = testing::GraphsOf(drawn);
    Case given(Mixed::ShapeOf(Sized(1200, 200)));
    given.AddProblems(AllPairs{});
    for (size_t p = 0; p < given.problems.size(); ++p) given.problems[p].pattern = ExplicitEdges{&graphs[p]};
    EXPECT_TRUE(testing::SameBytes(drawn.out, Run(given).out));
  }
}

TEST_P(EventsTest, BatchMatesPartsAndThreadsChangeNoByte) {
  for (const bool capped : {false, true}) {
    Mixed mixed(Sized(1200, 200), Law::kPoissonMulti, on_emulator_ ? DrawWay::kEvents : DrawWay::kRule);
    const std::vector<EdgeCap> caps(capped ? 3 : 0, EdgeCap{700});
    for (size_t p = 0; p < 3 && capped; ++p) mixed.made.problems[p].cap = static_cast<int32_t>(p);
    const Outcome all = Run(mixed.made, caps);
    EXPECT_TRUE(testing::SameBytes(all.out, testing::RunOn(*backend_, mixed.made, caps, 0.2).out));
    EXPECT_TRUE(testing::SameBytes(all.out, testing::RunOn(**Make(3), mixed.made, caps).out));
    Mixed alone(Sized(1200, 200), Law::kPoissonMulti, on_emulator_ ? DrawWay::kEvents : DrawWay::kRule);
    alone.made.problems = {mixed.made.problems[0]};
    const Outcome one = Run(alone.made, caps);
    EXPECT_TRUE(testing::SameBytes(testing::RowsOf(alone.made, one, 0), testing::RowsOf(mixed.made, all, 0)));
  }
}

TEST_P(EventsTest, RowsOfAnyNumberOfEventsFindRoom) {
  Shape shape;
  shape.lengths = {Sized(70, 20)};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 250.0;  // of bounds: rates are 1
  shape.spread = 0.2;
  Case made(shape);
  made.AddProblems(DrawnRows{.law = Law::kPoissonSet, .way = DrawWay::kEvents});
  made.problems[0].report->wanted.graph = true;
  const Outcome got = Run(made), want = testing::RunReference(made);
  EXPECT_EQ(got.reports[0].heads[0].graph.keys, want.reports[0].heads[0].graph.keys);
}

// NaN and infinity have no bounds; such heads ask every pair, whatever the rule would say of the others.
TEST_P(EventsTest, HeadsWithoutBoundsAskEveryPair) {
  for (const float hostile : {std::nanf(""), INFINITY, 1e30f}) {
    Mixed mixed(Sized(1200, 150), Law::kBernoulli, DrawWay::kRule);
    mixed.made.y[40 * 32 + 3] = hostile;
    mixed.made.key_bound[40] = hostile;
    EXPECT_FALSE(reference::UsesEvents(mixed.made.inputs, mixed.made.problems[0], 0));
    const Outcome got = Run(mixed.made), want = testing::RunReference(mixed.made);
    EXPECT_EQ(got.reports[0].heads[1].graph.keys, want.reports[0].heads[1].graph.keys);
  }
}

class CertifiedEventsTest : public testing::DeviceTest {
 protected:
  void ExpectReferenceGraph(const Case& made, const std::vector<EdgeCap>& caps) {
    const Outcome got = Run(made, caps), want = testing::RunReference(made, caps);
    EXPECT_EQ(got.reports[0].heads[0].graph.row_offsets, want.reports[0].heads[0].graph.row_offsets);
    EXPECT_EQ(got.reports[0].heads[0].graph.keys, want.reports[0].heads[0].graph.keys);
    EXPECT_EQ(got.reports[0].heads[0].graph.multiplicity, want.reports[0].heads[0].graph.multiplicity);
  }
};
EDGEWISE_TEST_ON(Cpus, CertifiedEventsTest);

// Long memberships, of which certificates (kernels/draw/certificate.h) decide most events that bounds along one
// direction leave open. Where memberships are equal, nothing hides an interval that is too short.
TEST_P(CertifiedEventsTest, AreThoseOfTheDefinition) {
  struct Memberships {
    int rank;
    double spread, rate;
  };
  for (const auto& [rank, spread, rate] :
       {Memberships{64, 0.3, 0.04}, {80, 0.7, 0.03}, {128, 0.3, 0.05}, {128, 0.0, 0.4}, {512, 0.3, 0.04}}) {
    for (const Law law : testing::kLaws) {
      SCOPED_TRACE(std::to_string(rank) + " " + std::to_string(spread) + " " + std::to_string(static_cast<int>(law)));
      Shape shape;
      shape.lengths = {400};
      shape.heads = 1;
      shape.rank = rank;
      shape.mean_rate = rate;
      shape.spread = spread;
      shape.gap_share = law == Law::kPoissonSet ? 0.2 : 0.0;
      Case made(shape);
      constexpr float kFactors[] = {0.0f, -1.0f, 1e-3f, 1e-9f, 1e-18f, 3.0f};
      for (int row = 3; row < 400; row += 9) {  // of a side in turn
        const bool query = row % 2 == 0;
        const float factor = kFactors[row / 9 % 6];
        for (int t = 0; t < rank; ++t) (query ? made.x : made.y)[static_cast<size_t>(row) * rank + t] *= factor;
        (query ? made.query_bound : made.key_bound)[static_cast<size_t>(row)] *= std::fabs(factor);
      }
      made.AddProblems(DrawnRows{.law = law,
                                 .exploration = law == Law::kPoissonMulti ? 0.01f : 0.0f,
                                 .key = {.seed = static_cast<uint64_t>(rank)},
                                 .way = DrawWay::kEvents});
      made.problems[0].report->wanted.graph = true;
      ASSERT_TRUE(reference::UsesEvents(made.inputs, made.problems[0], 0));
      ExpectReferenceGraph(made, {});
      made.problems[0].cap = 0;
      ExpectReferenceGraph(made, {EdgeCap{1000}});
    }
  }
}

}  // namespace
}  // namespace edgewise
