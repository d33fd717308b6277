// What an attention call computes, and what its result may not depend on.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/backend.h"
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

// Graphs that went through a call, as patterns for another.
std::vector<std::vector<HeadEdges>> GraphsOf(const Outcome& outcome) {
  std::vector<std::vector<HeadEdges>> graphs;
  for (const AttentionReport& report : outcome.reports) {
    graphs.emplace_back();
    for (const HeadReport& head : report.heads) graphs.back().push_back(head.graph);
  }
  return graphs;
}

TEST(AttentionTest, AllPairsIsDenseAttention) {
  for (const int length : {1, 2, 63, 64, 65, 95, 96, 97, 200, 513}) {
    for (const int head_dim : {1, 16, 24, 32, 64, 96, 128}) {
      Shape shape;
      shape.lengths = {length};
      shape.head_dim = head_dim;
      shape.heads = head_dim == 64 ? 1 : 2;
      shape.one_matrix = length % 2 == 0;
      Case attention_case(shape);
      attention_case.AddProblems(AllPairs{});
      const Outcome want = RunReference(attention_case);
      for (Isa isa : AvailableIsas()) {
        const Outcome got = RunCpu(attention_case, isa, 2);
        EXPECT_LE(LargestDifference(got.out, want.out), 1e-5) << length << " " << head_dim << " " << IsaName(isa);
        EXPECT_EQ(got.reports[0].heads[0].edges, static_cast<uint64_t>(length) * length);
      }
    }
  }
}

TEST(AttentionTest, EveryDensityMatchesTheReference) {
  for (const double rate : {0.002, 0.02, 0.06, 0.2, 0.38, 0.42, 0.7, 1.0}) {
    for (const int head_dim : {20, 32, 64, 96}) {
      Shape shape;
      shape.lengths = {700};
      shape.heads = 1;
      shape.head_dim = head_dim;
      shape.mean_rate = rate;
      shape.spread = 0.1;
      Case attention_case(shape);
      attention_case.AddProblems(DrawnRows{});
      const Outcome want = RunReference(attention_case);
      for (Isa isa : AvailableIsas()) {
        EXPECT_LE(LargestDifference(RunCpu(attention_case, isa, 2).out, want.out), 1e-5)
            << rate << " " << head_dim << " " << IsaName(isa);
      }
    }
  }
}

TEST(AttentionTest, LargeScoresStayFiniteAndExact) {
  Shape shape;
  shape.lengths = {150};
  Case attention_case(shape);
  for (float& value : attention_case.data) value *= 40.0f;  // scores of thousands: most weights underflow
  attention_case.AddProblems(AllPairs{});
  DrawnRows drawn;
  attention_case.AddProblems(drawn);
  const Outcome want = RunReference(attention_case);
  for (Isa isa : AvailableIsas()) {
    const Outcome got = RunCpu(attention_case, isa, 1);
    EXPECT_LE(LargestDifference(got.out, want.out), 2e-2) << IsaName(isa);  // values are near 40
  }
}

TEST(AttentionTest, QueriesWithoutEdgesGetZerosAndAreCounted) {
  for (const int length : {5, 100, 250}) {
    Shape shape;
    shape.lengths = {length};
    shape.heads = 1;
    Case attention_case(shape);
    // Rows of every second query are empty, one row is full so that dense tiles are met as well.
    std::vector<HeadEdges> heads(1);
    heads[0].row_offsets.push_back(0);
    for (int i = 0; i < length; ++i) {
      for (int j = 0; i % 2 == 0 && j < length; ++j) heads[0].keys.push_back(j);
      heads[0].row_offsets.push_back(static_cast<int64_t>(heads[0].keys.size()));
    }
    ExplicitEdges given{&heads};
    attention_case.AddProblems(given);
    for (Isa isa : AvailableIsas()) {
      const Outcome got = RunCpu(attention_case, isa, 2);
      EXPECT_EQ(got.reports[0].heads[0].isolated, static_cast<uint64_t>(length / 2));
      for (int i = 1; i < length; i += 2) {
        for (int t = 0; t < 16; ++t) EXPECT_EQ(got.out[i * 16 + t], 0.0f);
      }
      EXPECT_LE(LargestDifference(got.out, RunReference(attention_case).out), 1e-5);
    }
  }
}

TEST(AttentionTest, GivenEdgesGiveTheBytesOfTheDrawThatMadeThem) {
  for (const double rate : {0.0005, 0.01, 0.05, 0.3, 0.45, 0.9}) {
    for (const bool gaps : {false, true}) {
      for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
        Shape shape;
        shape.lengths = {411, 37};
        shape.head_dim = 32;
        shape.mean_rate = rate;
        shape.gap_share = gaps ? 0.2 : 0.0;
        Case drawn_case(shape), given_case(shape);
        DrawnRows drawn;
        drawn.law = law;
        drawn.self_loops = gaps;
        drawn_case.AddProblems(drawn);
        drawn_case.AskForAll();
        for (Isa isa : AvailableIsas()) {
          const Outcome first = RunCpu(drawn_case, isa, 2);
          const std::vector<std::vector<HeadEdges>> graphs = GraphsOf(first);
          given_case.problems.clear();
          given_case.out_rows = 0;
          given_case.AddProblems(AllPairs{});
          for (size_t p = 0; p < graphs.size(); ++p) given_case.problems[p].pattern = ExplicitEdges{&graphs[p]};
          EXPECT_TRUE(SameBytes(first.out, RunCpu(given_case, isa, 1).out)) << rate << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST(AttentionTest, CompleteGraphGivesTheBytesOfAllPairs) {
  Shape shape;
  shape.lengths = {300, 1, 97};
  Case all(shape), drawn_case(shape);
  all.AddProblems(AllPairs{});
  DrawnRows drawn;
  drawn.exploration = 1.0f;
  drawn_case.AddProblems(drawn);
  for (Isa isa : AvailableIsas()) {
    const Outcome outcome = RunCpu(drawn_case, isa, 2);
    EXPECT_EQ(outcome.reports[0].heads[1].edges, 300u * 300u);
    EXPECT_TRUE(SameBytes(outcome.out, RunCpu(all, isa, 2).out)) << IsaName(isa);
  }
}

TEST(AttentionTest, ThreadsChangeNoByte) {
  for (const double rate : {0.01, 0.2, 0.8}) {
    Shape shape;
    shape.lengths = {500, 333, 1, 96};
    shape.mean_rate = rate;
    Case attention_case(shape);
    attention_case.AddProblems(DrawnRows{});
    attention_case.AddProblems(DrawnRows{}, 0);
    attention_case.AskForAll();
    const std::vector<EdgeCap> caps = {EdgeCap{2000}};
    for (Isa isa : AvailableIsas()) {
      const Outcome one = RunCpu(attention_case, isa, 1, caps);
      for (const int threads : {2, 4}) {
        const Outcome many = RunCpu(attention_case, isa, threads, caps);
        EXPECT_TRUE(SameBytes(one.out, many.out)) << threads << " " << IsaName(isa);
        EXPECT_EQ(one.reports[0].heads[0].expected, many.reports[0].heads[0].expected);
      }
    }
  }
}

TEST(AttentionTest, BatchMatesChangeNoByte) {
  for (const double rate : {0.01, 0.2, 0.8}) {
    Shape shape;
    shape.lengths = {200, 150, 77, 300};
    shape.mean_rate = rate;
    Case together(shape);
    together.AddProblems(DrawnRows{});
    for (Isa isa : AvailableIsas()) {
      const Outcome all = RunCpu(together, isa, 2);
      const int64_t width = together.inputs.num_heads * together.inputs.head_dim;
      for (size_t p = 0; p < 4; ++p) {
        Case alone(shape);
        alone.AddProblems(DrawnRows{});
        alone.problems = {alone.problems[p]};
        const int64_t row = alone.problems[0].out_row;
        const Outcome one = RunCpu(alone, isa, 2);
        const size_t count = static_cast<size_t>(shape.lengths[p] * width);
        EXPECT_TRUE(
            SameBytes(std::span(all.out).subspan(row * width, count), std::span(one.out).subspan(row * width, count)))
            << p << " " << IsaName(isa);
      }
    }
  }
}

TEST(AttentionTest, SamplesMayShareTheirInputRows) {
  Shape shape;
  shape.lengths = {260};
  shape.mean_rate = 0.05;
  Case attention_case(shape);
  for (uint32_t sample = 0; sample < 3; ++sample) {
    DrawnRows drawn;
    drawn.key.sample = sample;
    attention_case.AddProblems(drawn);
  }
  const Outcome want = RunReference(attention_case);
  for (Isa isa : AvailableIsas()) EXPECT_LE(LargestDifference(RunCpu(attention_case, isa, 2).out, want.out), 1e-5);
}

// Values of 1: the output is the sum of the weights divided by itself, whatever path summed them.
TEST(AttentionTest, WeightsSumToOne) {
  for (const double rate : {0.01, 0.1, 0.3, 0.6, 1.0}) {
    Shape shape;
    shape.lengths = {900};
    shape.heads = 1;
    shape.head_dim = 64;
    shape.mean_rate = rate;
    shape.spread = 0.1;
    Case attention_case(shape);
    const size_t third = attention_case.data.size() / 3;
    std::fill(attention_case.data.begin() + static_cast<int64_t>(2 * third), attention_case.data.end(), 1.0f);
    attention_case.AddProblems(DrawnRows{});
    for (Isa isa : AvailableIsas()) {
      const Outcome outcome = RunCpu(attention_case, isa, 2);
      uint64_t zeros = 0;
      for (float value : outcome.out) {
        if (value == 0.0f) {
          ++zeros;
        } else {
          ASSERT_NEAR(value, 1.0f, 3e-6) << rate << " " << IsaName(isa);
        }
      }
      EXPECT_EQ(zeros, 64 * outcome.reports[0].heads[0].isolated);
    }
  }
}

TEST(AttentionTest, ExpectedEdgesAreTheMeanOfManyDraws) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    Shape shape;
    shape.lengths = {64};
    shape.heads = 1;
    shape.mean_rate = 0.3;
    Case attention_case(shape);
    const int samples = 400;
    for (uint32_t sample = 0; sample < samples; ++sample) {
      DrawnRows drawn;
      drawn.law = law;
      drawn.exploration = 0.01f;
      drawn.self_loops = true;
      drawn.key.sample = sample;
      attention_case.AddProblems(drawn);
    }
    attention_case.reports[0]->wanted.expected = true;
    const Outcome outcome = RunCpu(attention_case, AvailableIsas().back(), 2);
    double sum = 0.0, square = 0.0;
    for (const AttentionReport& report : outcome.reports) {
      const double edges = static_cast<double>(report.heads[0].edges);
      sum += edges;
      square += edges * edges;
    }
    const double mean = sum / samples;
    const double error = std::sqrt((square / samples - mean * mean) / samples);
    EXPECT_NEAR(mean, outcome.reports[0].heads[0].expected, 4.0 * error);
  }
}

TEST(AttentionTest, ScoresBeyondFloat32AreNaNAndNotAnAnswer) {
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    BackendOptions options;
    options.isa = isa;
    const auto backend = CreateBackend(options);
    if (!backend.ok()) continue;  // not on this machine
    const int n = 100, d = 16;
    std::vector<float> q(n * d, 1.0f), v(n * d, 1.0f), out(n * d);
    for (int t = 0; t < d; ++t) q[5 * d + t] = 3e38f;  // row 5 overflows as a query, and as a key for every query
    AttentionInputs inputs;
    inputs.q = inputs.k = ConstMatrix(q.data(), n, d);
    inputs.v = ConstMatrix(v.data(), n, d);
    inputs.num_heads = 1;
    inputs.head_dim = d;
    HeadEdges edges;  // row 5 sees row 6; other rows see themselves, but row 7 nothing
    edges.row_offsets = {0};
    for (int i = 0; i < n; ++i) {
      if (i != 7) edges.keys.push_back(i == 5 ? 6 : i);
      edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
    }
    const std::vector<HeadEdges> heads = {edges};
    for (const bool dense : {false, true}) {
      AttentionReport report;
      AttentionProblem problem;
      problem.tokens = n;
      if (!dense) problem.pattern = ExplicitEdges{&heads};
      problem.report = &report;
      ASSERT_TRUE((*backend)->Attend(inputs, {&problem, 1}, {}, Matrix(out.data(), n, d)).ok());
      ASSERT_TRUE((*backend)->Synchronize().ok());
      EXPECT_TRUE(std::isnan(out[5 * d])) << isa;
      if (dense) continue;
      EXPECT_EQ(out[7 * d], 0.0f) << isa;
      EXPECT_EQ(out[8 * d], 1.0f) << isa;
    }
  }
}

}  // namespace
}  // namespace edgewise
