// Counts and lists of reports on the device, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/attention/kernels.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::Case;
using edgewise::testing::Outcome;
using edgewise::testing::Shape;
using testing::CapOf;
using testing::DeviceCase;
using testing::DeviceCopies;
using testing::ExpectListed;
using testing::Get;
using testing::GraphsOf;
using testing::kLaws;
using testing::Listed;
using testing::Select;

std::string NameOf(Law law) { return "law " + std::to_string(static_cast<int>(law)); }

std::vector<double> Expected(DeviceCase& device, const std::vector<int32_t>& problems) {
  DeviceCopies memory;
  EXPECT_EQ(CountExpected(nullptr, device.call, memory.Put(problems), static_cast<int32_t>(problems.size())),
            cudaSuccess);
  std::vector<double> expected;
  for (const DeviceHeadCounts& counts : device.Counts()) expected.push_back(counts.expected);
  return expected;
}

TEST(CountExpectedTest, IsTheReferencesSumAtRatesOfEverySize) {
  for (const Law law : kLaws) {
    for (const double rate : {1e-12, 1e-4, 0.1, 3.0}) {
      Shape shape;
      shape.lengths = {70, 33, 1};
      shape.heads = 3;
      shape.mean_rate = rate;
      shape.gap_share = rate == 0.1 ? 0.3 : 0.0;
      Case host(shape);
      host.AddProblems(DrawnRows{.law = law}, -1);
      host.AddProblems(DrawnRows{.law = law, .exploration = 0.01f, .self_loops = true}, -1);
      host.AddProblems(DrawnRows{.law = law, .local_window = 6}, -1);
      host.AskForAll();
      const Outcome want = RunReference(host);
      DeviceCase device(host);
      const std::vector<double> got = Expected(device, {0, 1, 2, 3, 4, 5, 6, 7, 8});
      for (size_t i = 0; i < got.size(); ++i) {
        const double value = want.reports[i / 3].heads[i % 3].expected;
        EXPECT_NEAR(got[i], value, 1e-9 * value) << NameOf(law) << " rate " << rate << " problem " << i / 3;
      }
    }
  }
}

TEST(CountExpectedTest, OnlyListedProblemsAreCountedAndOrdersChangeNoBit) {
  Shape shape;
  shape.lengths = {100, 50, 40};
  Case host(shape);
  host.AddProblems(AllPairs{});
  host.AddProblems(DrawnRows{.law = Law::kPoissonSet});
  DeviceCase device(host);
  const std::vector<double> first = Expected(device, {5, 3});
  EXPECT_EQ(first.size(), 6u);
  for (const size_t head : {0, 1, 4, 5}) EXPECT_GT(first[head], 1.0);
  for (const size_t head : {2, 3}) EXPECT_EQ(first[head], 0.0);
  for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(3)}) {
    emulator::SetOrder(order);
    EXPECT_EQ(Expected(device, {5, 3}), first);
  }
  emulator::SetOrder(emulator::kForward);
  EXPECT_EQ(Expected(device, {}), first);
}

// Bounds of memberships that say nothing: as many edges as pairs.
TEST(CountExpectedTest, IsExactWhereBoundsAreUseless) {
  Shape shape;
  shape.lengths = {40};
  Case host(shape);
  host.query_bound.assign(host.query_bound.size(), INFINITY);
  host.AddProblems(DrawnRows{});
  host.AskForAll();
  const double value = RunReference(host).reports[0].heads[1].expected;
  DeviceCase device(host);
  EXPECT_NEAR(Expected(device, {0})[1], value, 1e-9 * value);
}

struct Drawing {
  Law law;
  bool self_loops;
  int window;
  double gap_share;
  double kept;  // share of the edges that a cap leaves
};

const Drawing kDrawings[] = {
    {Law::kBernoulli, false, 0, 0.0, 1.0},    {Law::kBernoulli, true, 0, 0.0, 0.4},
    {Law::kPoissonSet, false, 6, 0.3, 0.6},   {Law::kPoissonMulti, true, 0, 0.0, 1.0},
    {Law::kPoissonMulti, false, 4, 0.2, 0.7},
};

struct Drawn {
  explicit Drawn(const Drawing& drawing, std::vector<int> lengths = {75, 33}, double rate = 0.4)
      : host(ShapeOf(drawing, lengths, rate)) {
    const auto sequences = static_cast<int32_t>(lengths.size());
    host.AddProblems(AllPairs{});
    DrawnRows drawn = {.law = drawing.law, .self_loops = drawing.self_loops, .local_window = drawing.window};
    drawn.key.seed = 17;
    host.AddProblems(drawn, 0);
    for (int32_t s = 0; s < sequences; ++s) host.problems[s].cap = -1;
    host.AskForAll();
    uint64_t edges = 0;
    const Outcome all = RunReference(host, {EdgeCap{}});
    for (int32_t p = sequences; p < 2 * sequences; ++p) {
      for (const HeadReport& head : all.reports[p].heads) edges += head.edges;
    }
    max_edges = static_cast<uint64_t>(drawing.kept * static_cast<double>(edges));
    want = RunReference(host, {EdgeCap{max_edges}});
    device = std::make_unique<DeviceCase>(host, std::vector<DeviceCap>{CapOf(max_edges)});
    Select(*device);
  }
  static Shape ShapeOf(const Drawing& drawing, std::vector<int> lengths, double rate) {
    Shape shape;
    shape.lengths = std::move(lengths);
    shape.mean_rate = rate;
    shape.gap_share = drawing.gap_share;
    return shape;
  }

  Case host;
  uint64_t max_edges = 0;
  Outcome want;
  std::unique_ptr<DeviceCase> device;
};

// Counts the degrees of all problems by one launch, on top of 7s. `gap`: places between the problems, the last first.
// Expects the reference's numbers for the problems in `wanted`, and all others as they were.
void ExpectDegrees(const Drawn& drawn, const std::vector<int32_t>& wanted, size_t gap) {
  std::vector<int64_t> first(drawn.host.problems.size(), -1);
  std::vector<uint32_t> degrees(gap, 7);
  for (const int32_t p : wanted) {
    first[p] = static_cast<int64_t>(degrees.size());
    for (const HeadReport& head : drawn.want.reports[p].heads) {
      for (const uint32_t degree : head.key_degrees) degrees.push_back(degree + 7);
    }
    degrees.resize(degrees.size() + gap, 7);
  }
  DeviceCopies memory;
  uint32_t* counted = memory.Put(std::vector<uint32_t>(degrees.size(), 7));
  EXPECT_EQ(CountKeyDegrees(nullptr, drawn.device->call, memory.Put(first), counted), cudaSuccess);
  EXPECT_EQ(Get(counted, static_cast<int64_t>(degrees.size())), degrees);
}

TEST(EdgeReportsTest, DegreesAndEdgesAreTheReferences) {
  for (const Drawing& drawing : kDrawings) {
    SCOPED_TRACE(NameOf(drawing.law));
    const Drawn drawn(drawing);
    for (const emulator::Order order : {emulator::kForward, emulator::kBackward, emulator::Shuffled(2)}) {
      emulator::SetOrder(order);
      for (int32_t p : {2, 3}) ExpectListed(*drawn.device, p, drawn.want.reports[p]);
      ExpectDegrees(drawn, {3, 2}, 5);
      ExpectDegrees(drawn, {3}, 1);
    }
    emulator::SetOrder(emulator::kForward);
  }
}

TEST(EdgeReportsTest, DroppedProblemsAreNotCounted) {
  Drawn drawn(kDrawings[1]);
  DeviceCase& device = *drawn.device;
  const std::vector<double> expected = Expected(device, {2, 3});
  for (const int32_t p : {2, 3}) device.problems[p].cancel = device.memory.Put(std::vector<int32_t>{p == 2 ? 1 : 0});
  device.call.problems = device.memory.Put(device.problems);
  for (HeadReport& head : drawn.want.reports[2].heads) head.key_degrees.assign(head.key_degrees.size(), 0);
  ExpectDegrees(drawn, {2, 3}, 1);
  const std::vector<double> left = Expected(device, {2, 3});
  for (const size_t head : {0, 1}) EXPECT_EQ(left[head], 0.0);
  for (const size_t head : {2, 3}) EXPECT_EQ(left[head], expected[head]);
}

TEST(EdgeReportsTest, RowsOfMoreThanOneChunkGoOnWhereTheLastEnded) {
  Shape shape;
  shape.lengths = {kChunkKeys + 70};
  shape.heads = 1;
  shape.rank = 16;
  shape.mean_rate = 0.003;
  Case host(shape);
  host.AddProblems(DrawnRows{.self_loops = true});
  host.AskForAll();
  const DeviceCase device(host);
  ExpectListed(device, 0, RunReference(host).reports[0]);
}

// Weights of the edges of reports, of any kind of problem.
void ExpectWeights(const Case& host, const DeviceCase& device, const AttentionReport& report, int32_t problem) {
  const Listed graph = GraphsOf(report);
  bool multi = false;
  std::vector<float> want;
  for (const HeadReport& head : report.heads) {
    want.insert(want.end(), head.graph.weights.begin(), head.graph.weights.end());
    multi |= !head.graph.multiplicity.empty();
  }
  DeviceCopies memory;
  float* weights = memory.Put(std::vector<float>(want.size(), -1.0f));
  EXPECT_EQ(EdgeWeights(nullptr, device.call, problem, memory.Put(graph.row_offsets), memory.Put(graph.keys),
                        multi ? memory.Put(graph.multiplicity) : nullptr, weights),
            cudaSuccess);
  const std::vector<float> got = Get(weights, static_cast<int64_t>(want.size()));
  EXPECT_LE(edgewise::testing::LargestDifference(got, want), 2e-6) << "problem " << problem;
  EXPECT_EQ(got.size(), graph.keys.size());
  EXPECT_EQ(host.inputs.num_heads, static_cast<int32_t>(report.heads.size()));
}

TEST(EdgeWeightsTest, AreTheReferencesForDrawnRowsAndAllPairs) {
  for (const Drawing& drawing : kDrawings) {
    const Drawn drawn(drawing);
    for (int32_t p = 0; p < 4; ++p) ExpectWeights(drawn.host, *drawn.device, drawn.want.reports[p], p);
  }
}

TEST(EdgeWeightsTest, TakeBiasesShiftedQueriesAndGivenMultiplicity) {
  Shape shape;
  shape.lengths = {50};
  shape.head_dim = 8;
  shape.one_matrix = true;
  Case host(shape);
  HeadEdges edges;
  edges.row_offsets = {0};
  for (int32_t i = 20; i < 48; ++i) {
    for (int32_t key = i % 3; key < 50 && i != 30; key += 1 + i % 5) {
      edges.keys.push_back(key);
      edges.multiplicity.push_back(1 + key % 3);
    }
    edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
  }
  for (int i = 48; i < 50; ++i) edges.row_offsets.push_back(edges.row_offsets.back());
  const std::vector<HeadEdges> heads(2, edges);
  std::vector<float> by_distance(2 * 99), by_pair(50 * 50);
  for (size_t i = 0; i < by_distance.size(); ++i) by_distance[i] = 0.1f * static_cast<float>(i % 13);
  for (size_t i = 0; i < by_pair.size(); ++i) by_pair[i] = 0.2f * static_cast<float>(i % 11);
  host.inputs.distance_bias = by_distance.data();
  host.inputs.distance_span = 50;
  const PairwiseBias bias = {50, by_pair.data()};
  host.AddProblems(ExplicitEdges{&heads});
  host.problems[0].first_query = 20;
  host.problems[0].query_shift = -20;
  host.problems[0].bias = &bias;
  host.AskForAll();
  const Outcome want = RunReference(host);
  ExpectWeights(host, DeviceCase(host), want.reports[0], 0);
}

TEST(EdgeWeightsTest, RowsWhoseScoresOverflowAreNaN) {
  Shape shape;
  shape.lengths = {6};
  shape.heads = 1;
  Case host(shape);
  for (int t = 0; t < shape.head_dim; ++t) host.data[2 * shape.head_dim + t] = 1e30f;        // the query of token 2
  for (int t = 0; t < shape.head_dim; ++t) host.data[(6 + 4) * shape.head_dim + t] = 1e30f;  // the key of token 4
  host.AddProblems(AllPairs{true});
  host.AskForAll();
  const Outcome want = RunReference(host);
  const DeviceCase device(host);
  DeviceCopies memory;
  Listed graph = GraphsOf(want.reports[0]);
  graph.keys[4] = 4;  // token 2 attends to tokens 0, 4 and 2
  float* weights = memory.Put(std::vector<float>(graph.keys.size()));
  EXPECT_EQ(
      EdgeWeights(nullptr, device.call, 0, memory.Put(graph.row_offsets), memory.Put(graph.keys), nullptr, weights),
      cudaSuccess);
  const std::vector<float> got = Get(weights, static_cast<int64_t>(graph.keys.size()));
  for (int e : {3, 4, 5}) EXPECT_TRUE(std::isnan(got[e])) << e;
  for (int e : {0, 1, 2, 6, 7, 8, 9}) EXPECT_TRUE(std::isfinite(got[e])) << e;
}

}  // namespace
}  // namespace edgewise::cuda
