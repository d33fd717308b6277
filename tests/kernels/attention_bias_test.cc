// Biases of scores: the reference's result on every path, and no byte that depends on what else is computed.
#include <gtest/gtest.h>

#include "tests/kernels/attention_patterns.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::kBiasKinds;
using testing::LargestDifference;
using testing::MakeCase;
using testing::Outcome;
using testing::Pattern;
using testing::Patterns;
using testing::RunCpu;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

Shape ShapeOf(double gap_share) {
  Shape shape;
  shape.lengths = {210, 33};
  shape.head_dim = 32;
  shape.gap_share = gap_share;
  return shape;
}

ExplicitEdges GivenBack(const AttentionReport& report, std::vector<HeadEdges>& graph) {
  for (const HeadReport& head : report.heads) graph.push_back(head.graph);
  return ExplicitEdges{&graph, true};
}

TEST(BiasTest, CompactPatternsAgreeWithTheReferenceAndGiveTheSameBytesGivenBack) {
  for (const Pattern& pattern : Patterns()) {
    for (const BiasKind kind : kBiasKinds) {
      for (const double gap_share : {0.0, 0.3}) {
        const auto made = MakeCase(ShapeOf(gap_share), pattern);
        const Biases biases(kind, *made);
        const Outcome want = RunReference(*made);
        for (Isa isa : AvailableIsas()) {
          const Outcome got = RunCpu(*made, isa, 2);
          EXPECT_LE(LargestDifference(got.out, want.out), 1e-5) << pattern.name << " " << IsaName(isa);
          const auto given = MakeCase(ShapeOf(gap_share), pattern);
          const Biases same(kind, *given);
          std::vector<std::vector<HeadEdges>> graphs(given->problems.size());
          for (size_t p = 0; p < graphs.size(); ++p) {
            given->problems[p].pattern = GivenBack(got.reports[p], graphs[p]);
            for (size_t h = 0; h < graphs[p].size(); ++h) {
              EXPECT_LE(LargestDifference(graphs[p][h].weights, want.reports[p].heads[h].graph.weights), 1e-5);
            }
          }
          EXPECT_TRUE(SameBytes(got.out, RunCpu(*given, isa, 1).out)) << pattern.name << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST(BiasTest, DrawnRowsAgreeWithTheReferenceAtEveryDensity) {
  for (const double rate : {0.01, 0.1, 0.5, 1.0}) {
    for (const BiasKind kind : kBiasKinds) {
      for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
        Shape shape = ShapeOf(rate == 0.1 ? 0.3 : 0.0);
        shape.mean_rate = rate;
        Case drawn_case(shape);
        DrawnRows drawn;
        drawn.law = law;
        drawn.self_loops = true;
        drawn_case.AddProblems(drawn);
        drawn_case.AskForAll();
        const Biases biases(kind, drawn_case);
        const Outcome want = RunReference(drawn_case);
        for (Isa isa : AvailableIsas()) {
          const Outcome got = RunCpu(drawn_case, isa, 2);
          EXPECT_LE(LargestDifference(got.out, want.out), 2e-5) << rate << " " << IsaName(isa);
          for (size_t p = 0; p < want.reports.size(); ++p) {
            EXPECT_LE(LargestDifference(got.reports[p].heads[1].graph.weights, want.reports[p].heads[1].graph.weights),
                      1e-5)
                << rate << " " << IsaName(isa);
          }
        }
      }
    }
  }
}

// The next token of a text with a bias: its row alone, and among all others.
TEST(BiasTest, OneQueryGivesTheBytesOfItsRowAmongAll) {
  const Pattern causal = {"causal", [](int32_t) { return AllPairs{true}; }};
  for (const BiasKind kind : kBiasKinds) {
    const auto whole = MakeCase(ShapeOf(0.0), causal);
    const Biases biases(kind, *whole);
    const auto last = MakeCase(ShapeOf(0.0), causal);
    const Biases same(kind, *last);
    AttentionProblem& problem = last->problems[0];
    problem.first_query = problem.tokens - 1;
    problem.out_row = 0;
    last->problems.resize(1);
    last->out_rows = 1;
    for (Isa isa : AvailableIsas()) {
      const Outcome want = RunCpu(*whole, isa, 2);
      const Outcome got = RunCpu(*last, isa, 2);
      const auto width = static_cast<size_t>(last->inputs.v.columns);
      EXPECT_TRUE(SameBytes(got.out, std::span(want.out).subspan((problem.tokens - 1) * width, width))) << IsaName(isa);
    }
  }
}

// A bias of nothing, and one that decides everything.
TEST(BiasTest, ALargeBiasPicksItsKey) {
  Shape shape;
  shape.lengths = {130};
  Case attention_case(shape);
  attention_case.AddProblems(AllPairs{});
  std::vector<float> distance(static_cast<size_t>(attention_case.inputs.num_heads) * (2 * 130 - 1), 0.0f);
  for (Isa isa : AvailableIsas()) {
    attention_case.inputs.distance_bias = nullptr;
    const Outcome none = RunCpu(attention_case, isa, 1);
    attention_case.inputs.distance_bias = distance.data();
    attention_case.inputs.distance_span = 130;
    EXPECT_TRUE(SameBytes(none.out, RunCpu(attention_case, isa, 1).out)) << IsaName(isa);
    std::vector<float> next = distance;
    for (int h = 0; h < attention_case.inputs.num_heads; ++h)
      next[h * 259 + 129 + 1] = 1e4f;  // the key after the query
    attention_case.inputs.distance_bias = next.data();
    const Outcome got = RunCpu(attention_case, isa, 1);
    const int64_t width = attention_case.inputs.v.columns;
    for (int64_t i = 0; i + 1 < 130; ++i) {
      for (int64_t t = 0; t < width; ++t)
        ASSERT_NEAR(got.out[i * width + t], attention_case.inputs.v.row(i + 1)[t], 1e-5);
    }
  }
}

}  // namespace
}  // namespace edgewise
