// Every path of the CPU kernels draws the graph of kernels/draw.h, pair by pair.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/cpu/attention/attention.h"
#include "kernels/reference.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::Case;
using testing::Outcome;
using testing::RunCpu;
using testing::RunReference;
using testing::Shape;

void ExpectSameGraph(const Case& attention_case, const Outcome& got, const Outcome& want, const std::string& what) {
  for (size_t p = 0; p < attention_case.problems.size(); ++p) {
    for (int h = 0; h < attention_case.inputs.num_heads; ++h) {
      const HeadReport& a = got.reports[p].heads[h];
      const HeadReport& b = want.reports[p].heads[h];
      ASSERT_EQ(a.edges, b.edges) << what << " problem " << p << " head " << h;
      ASSERT_EQ(a.isolated, b.isolated) << what;
      ASSERT_EQ(a.graph.row_offsets, b.graph.row_offsets) << what << " problem " << p << " head " << h;
      ASSERT_EQ(a.graph.keys, b.graph.keys) << what << " problem " << p << " head " << h;
      ASSERT_EQ(a.graph.multiplicity, b.graph.multiplicity) << what << " problem " << p << " head " << h;
      ASSERT_EQ(a.key_degrees, b.key_degrees) << what;
      ASSERT_NEAR(a.expected, b.expected, 1e-4 * b.expected + 1e-6) << what;
      ASSERT_EQ(a.graph.weights.size(), b.graph.weights.size()) << what;
      for (size_t e = 0; e < a.graph.weights.size(); ++e) {
        ASSERT_NEAR(a.graph.weights[e], b.graph.weights[e], 1e-5) << what;
      }
    }
  }
}

void CheckCase(const Shape& shape, const DrawnRows& drawn, const std::string& what) {
  Case attention_case(shape);
  attention_case.AddProblems(drawn);
  attention_case.AskForAll();
  const Outcome want = RunReference(attention_case);
  for (Isa isa : AvailableIsas()) {
    const Outcome got = RunCpu(attention_case, isa, 2);
    ExpectSameGraph(attention_case, got, want, what + " " + IsaName(isa));
    EXPECT_LE(testing::LargestDifference(got.out, want.out), 1e-5) << what << " " << IsaName(isa);
  }
}

TEST(DrawTest, FastPathGivesTheReferenceGraph) {
  std::mt19937 random(7);
  const auto pick = [&](auto... values) {
    const double options[] = {static_cast<double>(values)...};
    return options[random() % (sizeof(options) / sizeof(double))];
  };
  for (int round = 0; round < 120; ++round) {
    Shape shape;
    shape.seed = static_cast<uint32_t>(round + 100);
    shape.lengths = {static_cast<int>(1 + random() % 300), static_cast<int>(1 + random() % 40)};
    shape.heads = static_cast<int>(1 + random() % 2);
    shape.head_dim = static_cast<int>(pick(8, 16, 20, 32, 64));
    shape.rank = static_cast<int>(pick(16, 32, 48, 64, 128));
    shape.mean_rate = pick(0.001, 0.01, 0.05, 0.2, 0.6, 1.0, 3.0);
    shape.spread = pick(0.0, 0.2, 0.5, 1.0);
    shape.gap_share = pick(0.0, 0.0, 0.1, 0.7);
    shape.one_matrix = random() % 2 == 0;
    DrawnRows drawn;
    drawn.law = static_cast<Law>(random() % 3);
    drawn.exploration = static_cast<float>(pick(0.0, 0.0, 0.01, 1.0));
    drawn.self_loops = random() % 3 == 0;
    drawn.local_window = static_cast<int32_t>(pick(0, 0, 1, 2, 7, 64));
    drawn.key.seed = static_cast<uint64_t>(random()) << 32 | random();
    drawn.key.sample = random() % 5;
    drawn.key.layer = random() % 4096;
    drawn.key.side = random() % 2;
    CheckCase(shape, drawn, "round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
}

TEST(DrawTest, LongSequencesGiveTheReferenceGraph) {
  for (const double rate : {0.01, 0.3, 0.999}) {
    Shape shape;
    shape.lengths = {1300};
    shape.heads = 1;
    shape.mean_rate = rate;
    shape.spread = 0.3;
    shape.seed = 5;
    CheckCase(shape, DrawnRows{}, "rate " + std::to_string(rate));
    if (HasFatalFailure()) return;
  }
}

// Rates at which the high byte decides nothing: multiples of 1/256 and their float neighbours, and tiny ones.
TEST(DrawTest, RatesOnByteBoundariesGiveTheReferenceGraph) {
  Shape shape;
  shape.lengths = {700};
  shape.heads = 1;
  shape.rank = 16;
  Case attention_case(shape);
  std::fill(attention_case.x.begin(), attention_case.x.end(), 0.0f);
  std::fill(attention_case.y.begin(), attention_case.y.end(), 0.0f);
  for (int i = 0; i < 700; ++i) {
    const float exact = static_cast<float>(i % 257) / 256.0f;
    const float towards = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 2.0f : exact;
    attention_case.x[16 * i] = i < 600 ? std::nextafter(exact, towards) : std::ldexp(1.0f, -(i - 600));
    attention_case.y[16 * i] = 1.0f;
    attention_case.query_bound[i] = attention_case.x[16 * i];
    attention_case.key_bound[i] = 1.0f;
  }
  attention_case.AddProblems(DrawnRows{});
  attention_case.AskForAll();
  const Outcome want = RunReference(attention_case);
  for (Isa isa : AvailableIsas()) {
    ExpectSameGraph(attention_case, RunCpu(attention_case, isa, 1), want, IsaName(isa));
  }
}

// Memberships of any sign, as those of a block matrix that is not positive: rates are clamped from both sides.
TEST(DrawTest, NegativeAndLargeProductsGiveTheReferenceGraph) {
  for (const double rate : {0.05, 2.0, 300.0}) {
    Shape shape;
    shape.lengths = {333};
    shape.mean_rate = rate;
    shape.spread = 3.0;
    CheckCase(shape, DrawnRows{}, "rate " + std::to_string(rate));
    DrawnRows explored;
    explored.exploration = 0.01f;
    CheckCase(shape, explored, "explored, rate " + std::to_string(rate));
    if (HasFatalFailure()) return;
  }
}

TEST(DrawTest, SequencesHeadsSamplesLayersSidesAndSeedsDrawApart) {
  Shape shape;
  shape.lengths = {200};
  shape.heads = 2;
  shape.mean_rate = 0.3;
  Case attention_case(shape);
  std::vector<DrawnRows> draws(5);
  draws[1].key.sample = 1;
  draws[2].key.layer = 1;
  draws[3].key.side = 1;
  draws[4].key.seed = 1;
  for (const DrawnRows& drawn : draws) attention_case.AddProblems(drawn);
  attention_case.AskForAll();
  const Outcome outcome = RunCpu(attention_case, AvailableIsas().back(), 2);
  std::vector<std::vector<int32_t>> graphs;
  for (const AttentionReport& report : outcome.reports) {
    for (const HeadReport& head : report.heads) graphs.push_back(head.graph.keys);
  }
  for (size_t a = 0; a < graphs.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(graphs[a], graphs[b]) << a << " and " << b;
  }
}

}  // namespace
}  // namespace edgewise
