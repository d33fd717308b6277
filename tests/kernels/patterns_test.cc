// Every kind of pattern on every device, with and without biases of scores. A query's result depends on its own keys
// alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::GraphsOf;
using testing::MakeCase;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::RunOn;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

// A shape that patterns are tried with.
struct Size {
  const char* name;
  std::vector<int> lengths;
  int heads = 2, head_dim = 16;
  double gap_share = 0.0;
  bool one_matrix = false;
  bool biases = false;  // of a kind that changes from pattern to pattern
  bool slow = false;    // not on the emulator
};

const Size kSizes[] = {
    {"around a tile of 64 keys", {1, 2, 63, 64, 65}, 1},
    {"biases by position, padded depth, interior pads", {90, 17}, 2, 24, 0.3, true, true},
    {"operands used where they lie", {130}, 1, 64, 0.0, false, false, true},
    {"more than the 516 queries of a CPU's group", {517}, 1, 16, 0.0, false, false, true},
};

class PatternsTest : public testing::DeviceTest {
 protected:
  struct Made {
    std::unique_ptr<Case> of;
    std::unique_ptr<Biases> biases;
  };
  // Calls `check` with a maker of equal cases, for every pattern of every size. `every_bias`: with each kind.
  void ForEach(std::vector<Pattern> patterns, const std::function<void(const std::function<Made()>&)>& check,
               bool every_bias = false) {
    size_t turn = 0;
    for (const Size& size : kSizes) {
      if (size.slow && on_emulator_) continue;
      Shape shape;
      shape.lengths = size.lengths;
      shape.heads = size.heads;
      shape.head_dim = size.head_dim;
      shape.gap_share = size.gap_share;
      shape.one_matrix = size.one_matrix;
      for (const Pattern& pattern : patterns) {
        for (const BiasKind kind : testing::kBiasKinds) {
          const bool its_turn = every_bias || kind == testing::kBiasKinds[1 + turn++ / 5 % 4];
          if (size.biases ? !its_turn : kind != BiasKind::kNone) continue;
          SCOPED_TRACE(std::string(size.name) + ": " + pattern.name + ", bias " +
                       std::to_string(static_cast<int>(kind)));
          check([&] {
            Made made = {MakeCase(shape, pattern), nullptr};
            made.biases = std::make_unique<Biases>(kind, *made.of);
            return made;
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  static std::vector<Pattern> WithDraws() {
    std::vector<Pattern> patterns = testing::Patterns();
    patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {9, 1, 0, 0}}; }});
    patterns.push_back({"drawn, dense", [](int32_t) { return DrawnRows{.exploration = 0.5f}; }});
    patterns.push_back({"drawn, multi", [](int32_t) { return DrawnRows{.law = Law::kPoissonMulti}; }});
    return patterns;
  }
};
EDGEWISE_TEST_ON(Devices, PatternsTest);

class CpuPatternsTest : public PatternsTest {};
EDGEWISE_TEST_ON(Cpus, CpuPatternsTest);

TEST_P(PatternsTest, AgreeWithTheReferenceInOutputsAndReports) {
  ForEach(
      WithDraws(), [&](const auto& make) { ExpectReference(*make().of); }, GetParam().options.device == "cpu");
}

TEST_P(PatternsTest, TheGraphGivenBackGivesTheSameBytes) {
  ForEach(WithDraws(), [&](const auto& make) {
    const Made made = make(), given = make();
    const Outcome first = Run(*made.of);
    const auto graphs = GraphsOf(first);
    for (size_t p = 0; p < graphs.size(); ++p) {
      const bool drawn = std::holds_alternative<DrawnRows>(made.of->problems[p].pattern);
      given.of->problems[p].pattern = ExplicitEdges{&graphs[p], !drawn};
      if (drawn) given.of->reports[p]->wanted.expected = false;
    }
    const Outcome second = Run(*given.of);
    EXPECT_TRUE(SameBytes(first.out, second.out));
    for (size_t p = 0; p < graphs.size(); ++p) {
      for (size_t h = 0; h < graphs[p].size(); ++h) {
        EXPECT_EQ(second.reports[p].heads[h].graph.keys, graphs[p][h].keys);
        EXPECT_EQ(second.reports[p].heads[h].graph.weights, graphs[p][h].weights);
      }
    }
  });
}

TEST_P(PatternsTest, BatchMatesChangeNoByte) {
  ForEach(WithDraws(), [&](const auto& make) {
    const Made made = make();
    const Outcome all = Run(*made.of);
    for (size_t p = 0; p < made.of->problems.size(); ++p) {
      const Made alone = make();
      alone.of->problems = {made.of->problems[p]};
      alone.of->problems[0].out_row = 0;
      alone.of->out_rows = made.of->lengths[p];
      EXPECT_TRUE(SameBytes(Run(*alone.of).out, RowsOf(*made.of, all, p))) << p;
    }
  });
}

TEST_P(CpuPatternsTest, ThreadsChangeNoByte) {
  const auto one = *Make(1), four = *Make(4);
  ForEach(testing::Patterns(), [&](const auto& make) {
    const Made made = make();
    const Outcome want = RunOn(*one, *made.of);
    EXPECT_TRUE(SameBytes(want.out, Run(*made.of).out));
    EXPECT_TRUE(SameBytes(want.out, RunOn(*four, *made.of).out));
  });
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
TEST_P(PatternsTest, LaterQueriesAloneGiveTheBytesOfTheWhole) {
  ForEach(testing::Patterns(), [&](const auto& make) {
    const Made whole = make();
    const Outcome want = Run(*whole.of);
    const int32_t counts[] = {
        1,   // the next token of a text
        5,   // less than a strip of 12 rows
        70,  // more than a tile of 64
    };
    for (const int32_t queries : counts) {
      const Made made = make();
      Case& part = *made.of;
      const int64_t width = part.inputs.q.columns;
      std::vector<float> q;
      part.out_rows = 0;
      for (AttentionProblem& problem : part.problems) {
        problem.first_query = std::max(0, problem.tokens - queries);
        problem.pattern = From(problem.pattern, problem.first_query);
        problem.query_shift = part.out_rows - problem.first_row - problem.first_query;
        problem.out_row = part.out_rows;
        part.out_rows += problem.tokens - problem.first_query;
        for (int64_t i = problem.first_query; i < problem.tokens; ++i) {
          const float* row = part.inputs.q.row(problem.first_row + i);
          q.insert(q.end(), row, row + width);
        }
      }
      part.TakeQueries(q);
      const Outcome got = Run(part);
      ExpectSameReports(got, RunReference(part), GetParam().weights, GetParam().expected);
      for (size_t p = 0; p < part.problems.size(); ++p) {
        const std::span<const float> rows = RowsOf(part, got, p);
        EXPECT_TRUE(SameBytes(RowsOf(*whole.of, want, p).last(rows.size()), rows)) << queries;
      }
    }
  });
}

TEST_P(PatternsTest, OneWindowIsAllPairs) {
  for (const bool causal : {false, true}) {
    Shape shape;
    shape.lengths = {150, 64, 7};  // tiles and a part; one tile; a part of one
    const auto all = MakeCase(shape, {"all", [&](int32_t) { return AllPairs{causal}; }});
    const auto window = MakeCase(shape, {"window", [&](int32_t n) { return testing::Windows(n, 1, causal); }});
    EXPECT_TRUE(SameBytes(Run(*all).out, Run(*window).out));
  }
}

// A GPU has two tile kernels for such heads in bf16, one of them for sm_90 alone and not for graphs.
TEST_P(PatternsTest, TheGraphOfAllPairsHasTheirBytes) {
  for (const int head_dim : {64, 128}) {
    for (const AllPairs& pairs : {AllPairs{}, AllPairs{true}, AllPairs{true, 90}}) {
      Shape shape;
      shape.lengths = {Sized(1000, 200), 130};
      shape.heads = Sized(8, 1);
      shape.head_dim = head_dim;
      Case made(shape);
      made.inputs.runs_as_windows = pairs.reach != AllPairs::kFar;
      made.AddProblems(pairs);
      made.AskForAll();
      const Outcome whole = Run(made);
      const auto graphs = GraphsOf(whole);
      for (size_t p = 0; p < graphs.size(); ++p) made.problems[p].pattern = ExplicitEdges{&graphs[p], true};
      EXPECT_TRUE(SameBytes(Run(made).out, whole.out))
          << head_dim << " columns, causal " << pairs.causal << ", reach " << pairs.reach;
    }
  }
}

// A bias of nothing, and one that decides everything.
TEST_P(PatternsTest, ALargeBiasPicksItsKey) {
  constexpr int kTokens = 130;
  Shape shape;
  shape.lengths = {kTokens};
  Case made(shape);
  made.AddProblems(AllPairs{});
  const Outcome none = Run(made);
  std::vector<float> distance(static_cast<size_t>(shape.heads) * (2 * kTokens - 1), 0.0f);
  made.inputs.distance_bias = distance.data();
  made.inputs.distance_span = kTokens;
  EXPECT_TRUE(SameBytes(none.out, Run(made).out));
  for (int h = 0; h < shape.heads; ++h) distance[h * (2 * kTokens - 1) + kTokens] = 1e4f;  // the key after the query
  const Outcome got = Run(made);
  const int64_t width = made.inputs.v.columns;
  ExpectNear(std::span(got.out).first((kTokens - 1) * width),
             std::span(made.inputs.v.row(1), static_cast<size_t>((kTokens - 1) * width)), GetParam().outputs);
}

}  // namespace
}  // namespace edgewise
