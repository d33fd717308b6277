// Attention on every device: the float64 reference's outputs and reports, and independence from all but its inputs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::GraphsOf;
using testing::kLaws;
using testing::MakeCase;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::RunOn;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

class AttentionTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, AttentionTest);

class CpuAttentionTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuAttentionTest);

class GpuAttentionTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Gpus, GpuAttentionTest);

TEST_P(AttentionTest, EveryLengthMatchesTheReference) {
  const int lengths[] = {
      1,            // one pair
      2,            // less than a vector
      33,           // one more than the 32 queries of a GPU's item of drawn rows
      63,  64, 65,  // around a tile of 64 keys
      95,  96, 97,  // around 8 strips of 12 queries, a CPU's unit of dense rows
      200,          // the last tile of keys and the last strip of queries are both cut off
      517,          // one more than the 516 queries that share a packed tile on a CPU
  };
  for (const int length : lengths) {
    if (length > Sized(517, 200)) break;
    SCOPED_TRACE(length);
    Shape shape;
    shape.lengths = {length};
    shape.heads = 1;
    shape.mean_rate = 0.03;
    shape.one_matrix = length % 2 == 0;
    Case made(shape);
    for (const bool causal : {false, true}) made.AddProblems(AllPairs{causal});
    for (const Law law : kLaws) {
      for (const float exploration : {0.0f, 0.4f}) made.AddProblems(DrawnRows{.law = law, .exploration = exploration});
    }
    made.AskForAll();
    ExpectReference(made);
  }
}

TEST_P(AttentionTest, EveryDimensionMatchesTheReference) {
  const std::pair<int, int> dimensions[] = {
      {1, 1},     {1, 2},   {5, 5},      // less than a vector
      {16, 16},   {64, 64}, {128, 128},  // whole vectors
      {16, 1},    {64, 20}, {96, 40},    // values narrower than keys
      {8, 96},    {32, 48}, {64, 200},   // values wider than keys
      {24, 24},   {56, 56}, {72, 72},    // multiples of 8 but not of 16
      {20, 20},                          // a multiple of 4 alone
      {33, 33},                          // one more than a slice of 32 columns
      {256, 256},                        // the widest that a GPU takes
  };
  for (const auto& [head_dim, value_dim] : dimensions) {
    for (const double rate : {0.05, 0.6}) {  // gathered edge by edge; by tiles
      SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim) + " " + std::to_string(rate));
      Shape shape;
      shape.lengths = {70, 5};  // more than a tile of keys; less than a strip of queries
      shape.head_dim = Aligned(head_dim);
      shape.value_dim = Aligned(value_dim);
      shape.heads = head_dim == 64 ? 1 : 2;
      shape.mean_rate = rate;
      shape.spread = 0.2;
      shape.one_matrix = head_dim % 3 == 0;
      Case made(shape);
      made.AddProblems(AllPairs{rate > 0.5});
      made.AddProblems(DrawnRows{});
      ExpectReference(made);
    }
  }
}

TEST_P(AttentionTest, EveryDensityMatchesTheReference) {
  const double rates[] = {
      0.0,          // no edge at all
      0.002,        // many queries without an edge
      0.04,  0.06,  // around the 1/20 at which a GPU calls a head dense
      0.16,  0.2,
      0.25,  0.28,  // around the shares 0.18, 0.22 and 0.27 at which a CPU goes over to tiles, part by part,
      0.31,  0.38,  // and 0.29 and 0.34 at which its rows are dense
      0.7,   1.0,   // nearly all pairs
      4.0,          // every rate is cut to 1
  };
  for (const double rate : rates) {
    for (const int head_dim : {20, 64}) {  // shallow; deep
      SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(head_dim));
      Shape shape;
      shape.lengths = {Sized(300, 100)};
      shape.heads = 1;
      shape.head_dim = Aligned(head_dim);
      shape.mean_rate = rate;
      shape.spread = rate > 1.0 ? 0.0 : 0.1;
      shape.rank = 48;
      Case made(shape);
      for (const Law law : kLaws) made.AddProblems(DrawnRows{.law = law});
      ExpectReference(made);
    }
  }
}

TEST_P(AttentionTest, GivenRowsOfAnyKindMatchTheReference) {
  std::mt19937 random(5);
  Shape shape;
  shape.lengths = {90, 1, 40};
  Case made(shape);
  made.AddProblems(AllPairs{});
  std::vector<std::vector<HeadEdges>> given(shape.lengths.size());
  for (size_t p = 0; p < given.size(); ++p) {
    AttentionProblem& problem = made.problems[p];
    problem.first_query = p == 2 ? 25 : 0;
    for (int head = 0; head < shape.heads; ++head) {
      HeadEdges& edges = given[p].emplace_back();
      edges.row_offsets.push_back(0);
      for (int i = 0; i < problem.tokens; ++i) {
        const uint32_t share = i % 5 == 0 ? 0 : random() % 100;  // of an empty row, and to 94 of 100; from 95 on all
        for (int j = 0; j < problem.tokens && i >= problem.first_query; ++j) {
          if (random() % 100 >= share && share < 95) continue;
          edges.keys.push_back(j);
          if (p != 1) edges.multiplicity.push_back(1 + static_cast<int>(random() % 4 == 0 ? random() % 90000 : 0));
        }
        edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
      }
    }
    problem.pattern = ExplicitEdges{&given[p]};
  }
  made.out_rows -= made.problems[2].first_query;
  made.AskForAll();
  ExpectReference(made);
  for (auto& problem : given) {
    for (HeadEdges& edges : problem) edges.multiplicity.clear();
  }
  ExpectReference(made);
}

// The last rows only, so that it takes little time.
TEST_P(AttentionTest, RowsOverSeveralChunksOfKeysMatchTheReference) {
  std::mt19937 random(8);
  constexpr int kChunk = 4096;          // keys of a chunk of a GPU's rows
  for (const int every : {1, 2, 97}) {  // keys of a row: all, half, few
    SCOPED_TRACE(every);
    Shape shape;
    shape.lengths = {2 * kChunk + 70};
    shape.heads = 1;
    Case made(shape);
    made.AddProblems(AllPairs{});
    AttentionProblem& problem = made.problems[0];
    problem.first_query = problem.tokens - 40;
    made.out_rows = 40;
    std::vector<HeadEdges> given(1);
    given[0].row_offsets.assign(static_cast<size_t>(problem.first_query) + 1, 0);
    for (int i = problem.first_query; i < problem.tokens; ++i) {
      for (int j = i % 7 == 0 ? kChunk : 0; j < problem.tokens; j += 1 + static_cast<int>(random() % every)) {
        given[0].keys.push_back(j);
      }
      given[0].row_offsets.push_back(static_cast<int64_t>(given[0].keys.size()));
    }
    problem.pattern = ExplicitEdges{&given};
    ExpectReference(made);
  }
}

TEST_P(AttentionTest, LargeScoresStayFiniteAndExact) {
  Shape shape;
  shape.lengths = {150};
  Case made(shape);
  for (float& value : made.data) value *= 40.0f;  // scores of thousands: most weights underflow
  made.AddProblems(AllPairs{});
  made.AddProblems(DrawnRows{});
  const Outcome got = Run(made);
  EXPECT_TRUE(std::all_of(got.out.begin(), got.out.end(), [](float value) { return std::isfinite(value); }));
  // Scores of 6000 are rounded by 2^-11; those of keys rounded to bf16 say nothing.
  if (!GetParam().bf16) ExpectNear(got.out, RunReference(made).out, 2e-4);
}

// Values of 1: the output is the sum of the weights divided by itself, whatever path summed them.
TEST_P(AttentionTest, WeightsSumToOneAndQueriesWithoutEdgesGetZeros) {
  for (const double rate : {0.001, 0.01, 0.1, 0.3, 0.6, 1.0}) {
    Shape shape;
    shape.lengths = {Sized(900, 150)};
    shape.heads = 1;
    shape.head_dim = 64;
    shape.mean_rate = rate;
    shape.spread = 0.1;
    Case made(shape);
    std::fill(made.data.begin() + static_cast<int64_t>(made.data.size() / 3 * 2), made.data.end(), 1.0f);
    made.AddProblems(DrawnRows{});
    const Outcome got = Run(made);
    uint64_t zeros = 0;
    for (const float value : got.out) {
      zeros += value == 0.0f ? 1 : 0;
      ASSERT_NEAR(value, value == 0.0f ? 0.0f : 1.0f, GetParam().outputs) << rate;
    }
    EXPECT_EQ(zeros, 64 * got.reports[0].heads[0].isolated);
  }
}

TEST_P(AttentionTest, ScoresBeyondFloat32AreNaNInTheirRowsAndNoOther) {
  for (const double rate : {0.05, 0.6}) {
    Shape shape;
    shape.lengths = {100};
    shape.heads = 1;
    shape.mean_rate = rate;
    Case made(shape);
    made.AddProblems(DrawnRows{.self_loops = true});
    made.AddProblems(AllPairs{});
    made.AskForAll();
    const Outcome want = RunReference(made);
    for (int c = 0; c < shape.head_dim; ++c) made.data[20 * shape.head_dim + c] = c % 2 == 0 ? 3e38f : -3e38f;
    const Outcome got = Run(made);
    for (size_t i = 0; i < got.out.size(); ++i) {
      if (static_cast<int>(i) / shape.head_dim % 100 == 20) {
        EXPECT_TRUE(std::isnan(got.out[i]));
      } else {
        EXPECT_NEAR(got.out[i], want.out[i], 4.0 * GetParam().outputs) << rate;  // values up to 4
      }
    }
    for (const auto& report : got.reports) {
      const HeadEdges& graph = report.heads[0].graph;
      for (int row = 0; row < 100; ++row) {
        for (int64_t e = graph.row_offsets[row]; e < graph.row_offsets[row + 1]; ++e) {
          EXPECT_EQ(std::isnan(graph.weights[e]), row == 20) << rate << " " << row;
        }
      }
    }
  }
}

TEST_P(AttentionTest, AGraphGivenBackGivesTheSameBytes) {
  const std::vector<int> lengths = {Sized(411, 80), 37};
  for (const double rate : {0.0005, 0.05, 0.3, 0.45, 0.9}) {  // gathered; on both sides of dense; dense
    for (const double gaps : {0.0, 0.2}) {
      for (const Law law : kLaws) {
        Shape shape;
        shape.lengths = lengths;
        shape.heads = 1;
        shape.head_dim = 32;
        shape.mean_rate = rate;
        shape.gap_share = gaps;
        Case drawn(shape);
        drawn.AddProblems(DrawnRows{.law = law, .self_loops = gaps > 0.0});
        drawn.AskForAll();
        const Outcome first = Run(drawn);
        const auto graphs = GraphsOf(first);
        for (size_t p = 0; p < graphs.size(); ++p) drawn.problems[p].pattern = ExplicitEdges{&graphs[p]};
        EXPECT_TRUE(SameBytes(Run(drawn).out, first.out)) << rate << " " << gaps << " " << static_cast<int>(law);
      }
    }
  }
}

TEST_P(AttentionTest, BatchMatesChangeNoByte) {
  const std::vector<int> lengths = {Sized(200, 33), Sized(150, 100), 77, Sized(300, 5)};
  for (const double rate : {0.01, 0.2, 0.8}) {
    Shape shape;
    shape.lengths = lengths;
    shape.mean_rate = rate;
    Case together(shape), alone(shape);
    together.AddProblems(DrawnRows{.self_loops = rate < 0.1});
    const Outcome all = Run(together);
    for (size_t p = 0; p < lengths.size(); ++p) {
      alone.problems = {together.problems[p]};
      alone.problems[0].out_row = 0;
      alone.out_rows = lengths[p];
      EXPECT_TRUE(SameBytes(Run(alone).out, RowsOf(together, all, p))) << rate << " sequence " << p;
    }
  }
}

TEST_P(AttentionTest, SamplesMayShareTheirInputRows) {
  Shape shape;
  shape.lengths = {Sized(260, 90)};
  shape.mean_rate = 0.05;
  Case made(shape);
  for (uint32_t sample = 0; sample < 3; ++sample) made.AddProblems(DrawnRows{.key = {.sample = sample}});
  ExpectReference(made);
}

// Of the others the CPU leaves the output as it is; their edges are drawn, counted and reported as before.
TEST_P(AttentionTest, RowsThatAreReadHaveTheBytesOfTheWholeAndAllAreCounted) {
  for (const double rate : {0.05, 0.6}) {        // gathered edge by edge; by tiles
    for (const int32_t read : {1, 5, 60, 61}) {  // around the rows of a block
      for (const bool degrees : {false, true}) {
        SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(read));
        Shape shape;
        shape.lengths = {130, 4, 61};
        shape.mean_rate = rate;
        Case made(shape);
        made.AddProblems(AllPairs{true});
        made.AddProblems(DrawnRows{});
        for (const auto& report : made.reports) report->wanted.key_degrees = report->wanted.expected = degrees;
        const Outcome whole = Run(made);
        for (AttentionProblem& problem : made.problems) problem.read_queries = read;
        const Outcome part = Run(made);
        for (size_t p = 0; p < made.problems.size(); ++p) {
          const auto rows = static_cast<size_t>(std::min(read, made.problems[p].tokens));
          const size_t floats = rows * shape.heads * shape.head_dim;
          EXPECT_TRUE(SameBytes(RowsOf(made, part, p).first(floats), RowsOf(made, whole, p).first(floats)));
          for (int h = 0; h < shape.heads; ++h) {
            const HeadReport &want = whole.reports[p].heads[h], &got = part.reports[p].heads[h];
            EXPECT_EQ(got.edges, want.edges);
            EXPECT_EQ(got.isolated, want.isolated);
            EXPECT_EQ(got.expected, want.expected);
            EXPECT_EQ(got.key_degrees, want.key_degrees);
          }
        }
      }
    }
  }
}

TEST_P(CpuAttentionTest, CompleteGraphGivesTheBytesOfAllPairs) {
  Shape shape;
  shape.lengths = {300, 1, 97};  // several tiles; one token; one more than whole strips
  Case all(shape), drawn(shape);
  all.AddProblems(AllPairs{});
  drawn.AddProblems(DrawnRows{.exploration = 1.0f});
  const Outcome outcome = Run(drawn);
  EXPECT_EQ(outcome.reports[0].heads[1].edges, 300u * 300u);
  EXPECT_TRUE(SameBytes(outcome.out, Run(all).out));
}

TEST_P(CpuAttentionTest, ThreadsChangeNoByte) {
  for (const double rate : {0.01, 0.2, 0.8}) {
    Shape shape;
    shape.lengths = {500, 333, 1, 96};  // work for several threads, and too little for a second
    shape.mean_rate = rate;
    Case made(shape);
    made.AddProblems(DrawnRows{});
    made.AddProblems(DrawnRows{}, 0);
    made.AskForAll();
    const Outcome one = RunOn(**Make(1), made, {EdgeCap{2000}});
    for (const int threads : {2, 4}) {
      const Outcome many = RunOn(**Make(threads), made, {EdgeCap{2000}});
      EXPECT_TRUE(SameBytes(one.out, many.out)) << threads;
      EXPECT_EQ(one.reports[0].heads[0].expected, many.reports[0].heads[0].expected);
    }
  }
}

// At the length of use on a GPU, where the float64 reference would take too long.
TEST_P(GpuAttentionTest, LongSequencesMatchTheCpu) {
  const auto drawn = [](int32_t) { return DrawnRows{.key = {21, 0, 2, 0}}; };
  const std::pair<Pattern, double> cases[] = {
      {{"drawn, few", drawn}, 0.02},
      {{"drawn, many", drawn}, 0.5},
      {{"all pairs", [](int32_t) { return AllPairs{}; }}, 0.1},
      {{"causal", [](int32_t) { return AllPairs{.causal = true}; }}, 0.1},
      {{"windows", [](int32_t n) { return testing::Windows(n, 16, false); }}, 0.1}};
  const auto cpu = *CreateBackend({});
  for (const auto& [pattern, rate] : cases) {
    SCOPED_TRACE(pattern.name);
    Shape shape;
    shape.lengths = {Sized(16384, 600)};
    shape.heads = 1;
    shape.head_dim = 32;
    shape.mean_rate = rate;
    const auto made = MakeCase(shape, pattern);
    for (const auto& report : made->reports) report->wanted.expected = report->wanted.graph = false;
    const Outcome want = RunOn(*cpu, *made), got = Run(*made);
    ExpectNear(got.out, want.out, GetParam().outputs);
    ExpectSameReports(got, want, 0.0, 0.0);
  }
}

}  // namespace
}  // namespace edgewise
