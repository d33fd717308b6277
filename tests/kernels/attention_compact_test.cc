// Patterns whose queries share their keys: all pairs, causal pairs, grouped keys and what their graphs give when they
// are given back. A query's result depends on its own keys alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>

#include "tests/kernels/attention_patterns.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::Case;
using testing::LargestDifference;
using testing::MakeCase;
using testing::Outcome;
using testing::Pattern;
using testing::Patterns;
using testing::RunCpu;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;
using testing::Windows;

void ExpectSameReports(const Outcome& got, const Outcome& want, const std::string& name) {
  for (size_t p = 0; p < want.reports.size(); ++p) {
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadReport& a = got.reports[p].heads[h];
      const HeadReport& b = want.reports[p].heads[h];
      EXPECT_EQ(a.edges, b.edges) << name;
      EXPECT_EQ(a.isolated, b.isolated) << name;
      EXPECT_EQ(a.expected, static_cast<double>(b.edges)) << name;
      EXPECT_EQ(a.key_degrees, b.key_degrees) << name;
      EXPECT_EQ(a.graph.row_offsets, b.graph.row_offsets) << name;
      EXPECT_EQ(a.graph.keys, b.graph.keys) << name;
      EXPECT_LE(LargestDifference(a.graph.weights, b.graph.weights), 1e-5) << name;
    }
  }
}

// The shapes that patterns are tried with.
struct Size {
  std::vector<int> lengths;
  int heads, head_dim, value_dim;
  double gap_share;
  bool one_matrix;
};

void PrintTo(const Size& size, std::ostream* out) {
  *out << size.head_dim << "x" << size.value_dim << "x" << size.lengths.back();
}

const Size kSizes[] = {
    {{1, 2, 63, 64, 65}, 2, 16, 0, 0.0, false},  // around a tile
    {{300}, 1, 64, 0, 0.0, false},               // operands used where they lie
    {{257, 100}, 3, 24, 0, 0.2, true},           // padded depth, interior pads
    {{150}, 2, 32, 48, 0.0, true},               // values wider than keys
    {{150}, 2, 64, 20, 0.0, false},              // and narrower
    {{520}, 1, 64, 0, 0.0, false},               // several blocks of rows
};

class CompactTest : public ::testing::TestWithParam<Size> {
 protected:
  Shape shape() const {
    const Size& size = GetParam();
    Shape shape;
    shape.lengths = size.lengths;
    shape.heads = size.heads;
    shape.head_dim = size.head_dim;
    shape.value_dim = size.value_dim;
    shape.gap_share = size.gap_share;
    shape.one_matrix = size.one_matrix;
    return shape;
  }
};

TEST_P(CompactTest, AgreesWithTheReferenceAndReportsTheGraph) {
  for (const Pattern& pattern : Patterns()) {
    const auto made = MakeCase(shape(), pattern);
    const Outcome want = RunReference(*made);
    for (Isa isa : AvailableIsas()) {
      const Outcome got = RunCpu(*made, isa, 2);
      EXPECT_LE(LargestDifference(got.out, want.out), 1e-5) << pattern.name << " " << IsaName(isa);
      ExpectSameReports(got, want, pattern.name);
    }
  }
}

TEST_P(CompactTest, TheGraphGivenBackGivesTheSameBytes) {
  for (const Pattern& pattern : Patterns()) {
    const auto made = MakeCase(shape(), pattern);
    for (Isa isa : AvailableIsas()) {
      const Outcome first = RunCpu(*made, isa, 2);
      std::vector<std::vector<HeadEdges>> graphs;
      for (const AttentionReport& report : first.reports) {
        graphs.emplace_back();
        for (const HeadReport& head : report.heads) graphs.back().push_back(head.graph);
      }
      const auto given = MakeCase(shape(), pattern);
      for (size_t p = 0; p < graphs.size(); ++p) given->problems[p].pattern = ExplicitEdges{&graphs[p], true};
      const Outcome second = RunCpu(*given, isa, 1);
      EXPECT_TRUE(SameBytes(first.out, second.out)) << pattern.name << " " << IsaName(isa);
      ExpectSameReports(second, first, pattern.name);
    }
  }
}

TEST_P(CompactTest, ThreadsAndBatchMatesChangeNoByte) {
  for (const Pattern& pattern : Patterns()) {
    const auto made = MakeCase(shape(), pattern);
    for (Isa isa : AvailableIsas()) {
      const Outcome one = RunCpu(*made, isa, 1);
      for (const int threads : {2, 4}) {
        EXPECT_TRUE(SameBytes(one.out, RunCpu(*made, isa, threads).out)) << pattern.name << " " << IsaName(isa);
      }
      const int64_t width = made->inputs.v.columns;
      for (size_t p = 0; p < made->problems.size(); ++p) {
        const auto alone = MakeCase(shape(), pattern);
        alone->problems = {alone->problems[p]};
        const Outcome single = RunCpu(*alone, isa, 2);
        const auto first = static_cast<size_t>(made->problems[p].out_row * width);
        const auto count = static_cast<size_t>(made->problems[p].tokens * width);
        EXPECT_TRUE(SameBytes(std::span(one.out).subspan(first, count), std::span(single.out).subspan(first, count)))
            << pattern.name << " " << IsaName(isa);
      }
    }
  }
}

// The pattern of queries first.. of a grouped pattern.
AttentionPattern From(const AttentionPattern& pattern, int32_t first) {
  const auto* grouped = std::get_if<GroupedKeys>(&pattern);
  if (grouped == nullptr) return pattern;
  GroupedKeys rest;
  rest.causal = grouped->causal;
  rest.key_offsets.push_back(0);
  for (size_t g = 0; g + 1 < grouped->group_begin.size(); ++g) {
    if (grouped->group_begin[g + 1] <= first) continue;
    rest.group_begin.push_back(std::max(first, grouped->group_begin[g]));
    rest.keys.insert(rest.keys.end(), grouped->keys.begin() + grouped->key_offsets[g],
                     grouped->keys.begin() + grouped->key_offsets[g + 1]);
    rest.key_offsets.push_back(static_cast<int64_t>(rest.keys.size()));
  }
  rest.group_begin.push_back(grouped->group_begin.back());
  return rest;
}

// As decoding does: few queries, whose rows are numbered apart from the keys.
TEST_P(CompactTest, LaterQueriesAloneGiveTheBytesOfTheWhole) {
  for (const Pattern& pattern : Patterns()) {
    const auto whole = MakeCase(shape(), pattern);
    for (Isa isa : AvailableIsas()) {
      const Outcome want = RunCpu(*whole, isa, 2);
      for (const int32_t queries : {1, 5, 70}) {
        const auto part = MakeCase(shape(), pattern);
        const int64_t width = part->inputs.q.columns;
        std::vector<float> q;
        part->out_rows = 0;
        for (AttentionProblem& problem : part->problems) {
          problem.first_query = std::max(0, problem.tokens - queries);
          problem.pattern = From(problem.pattern, problem.first_query);
          problem.query_shift = static_cast<int64_t>(q.size()) / width - problem.first_row - problem.first_query;
          problem.out_row = part->out_rows;
          part->out_rows += problem.tokens - problem.first_query;
          for (int64_t i = problem.first_query; i < problem.tokens; ++i) {
            const float* row = part->inputs.q.row(problem.first_row + i);
            q.insert(q.end(), row, row + width);
          }
        }
        part->inputs.q = ConstMatrix(q.data(), part->out_rows, width);
        const Outcome got = RunCpu(*part, isa, 2);
        ExpectSameReports(got, RunReference(*part), pattern.name);
        const int64_t value_width = part->inputs.v.columns;
        for (size_t p = 0; p < part->problems.size(); ++p) {
          const AttentionProblem& problem = part->problems[p];
          const auto count = static_cast<size_t>((problem.tokens - problem.first_query) * value_width);
          const auto first = static_cast<size_t>((whole->problems[p].out_row + problem.first_query) * value_width);
          EXPECT_TRUE(SameBytes(std::span(want.out).subspan(first, count),
                                std::span(got.out).subspan(static_cast<size_t>(problem.out_row * value_width), count)))
              << pattern.name << " " << queries << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST_P(CompactTest, OneWindowIsAllPairs) {
  for (const bool causal : {false, true}) {
    const auto all = MakeCase(shape(), {"all", [&](int32_t) { return AllPairs{causal}; }});
    const auto window = MakeCase(shape(), {"window", [&](int32_t n) { return Windows(n, 1, causal); }});
    for (Isa isa : AvailableIsas()) {
      EXPECT_TRUE(SameBytes(RunCpu(*all, isa, 2).out, RunCpu(*window, isa, 2).out)) << IsaName(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CompactTest, ::testing::ValuesIn(kSizes), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace edgewise
