// Attention of the decode phase on every device: long lists of keys, which a GPU takes in parts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::GraphsOf;
using testing::Outcome;
using testing::SameBytes;
using testing::Shape;

// The last `queries` tokens of each sequence attend to every `every`-th token before them; 0: to all; below 0: to a
// window that reaches -every tokens back.
void AddLast(Case& to, int32_t queries, int32_t every) {
  const size_t before = to.problems.size();
  int64_t out_rows = to.out_rows;
  to.AddProblems(AllPairs{true, every < 0 ? -every : AllPairs::kFar});
  for (size_t p = before; p < to.problems.size(); ++p) {
    AttentionProblem& problem = to.problems[p];
    problem.first_query = std::max(0, problem.tokens - queries);
    problem.out_row = std::exchange(out_rows, out_rows + problem.tokens - problem.first_query);
    if (every <= 0) continue;
    GroupedKeys groups;
    groups.causal = true;
    groups.group_begin = {problem.first_query, problem.tokens};
    for (int32_t key = 0; key < problem.tokens; key += every) groups.keys.push_back(key);
    groups.key_offsets = {0, static_cast<int64_t>(groups.keys.size())};
    problem.pattern = std::move(groups);
  }
  to.out_rows = out_rows;
}

class DecodeTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, DecodeTest);

TEST_P(DecodeTest, AgreesWithTheReference) {
  for (const int head_dim : {16, 64, 136}) {
    for (const int32_t queries : {1, 3}) {
      for (const int32_t every : {0, 1, 2, -100, -300}) {
        SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(queries) + " " + std::to_string(every));
        Shape shape;
        shape.lengths = {1, 255, 256, 257, 512, 700};  // about the keys of a part, and of two
        shape.head_dim = head_dim;
        shape.heads = every == -300 ? 6 : 2;
        shape.key_value_heads = every < 0 ? shape.heads / 2 / queries : 0;
        Case made(shape);
        made.inputs.phase = Phase::kDecode;
        AddLast(made, queries, every);
        const Biases biases(queries == 3 ? BiasKind::kDistance : BiasKind::kNone, made);
        ExpectReference(made);
      }
    }
  }
}

// A generation whose cache was dropped computes the rows of many tokens again, which were decoded one by one.
TEST_P(DecodeTest, ARowDependsOnNothingElse) {
  constexpr int32_t kTokens = 600, kQueries = 41;
  for (const int32_t every : {0, 2, -300}) {
    Shape shape;
    shape.lengths = {kTokens};
    shape.head_dim = 24;
    shape.key_value_heads = every == -300 ? 1 : 2;
    Case together(shape);
    together.inputs.phase = Phase::kDecode;
    AddLast(together, kQueries, every);
    const Outcome whole = Run(together);
    Case alone(shape);
    alone.inputs.phase = Phase::kDecode;
    for (const int32_t tokens : {kTokens, 577, 576, kTokens - kQueries + 1}) {
      alone.problems.clear();
      alone.out_rows = 0;
      AddLast(alone, 1, every);
      alone.problems[0].tokens = tokens;
      alone.problems[0].first_query = tokens - 1;
      if (auto* groups = std::get_if<GroupedKeys>(&alone.problems[0].pattern)) {
        groups->group_begin = {tokens - 1, tokens};
        groups->keys.erase(std::lower_bound(groups->keys.begin(), groups->keys.end(), tokens), groups->keys.end());
        groups->key_offsets[1] = static_cast<int64_t>(groups->keys.size());
      }
      const int64_t width = together.out_columns(), row = tokens - (kTokens - kQueries) - 1;
      const Outcome got = Run(alone);
      EXPECT_TRUE(SameBytes(std::span(got.out).first(width), std::span(whole.out).subspan(row * width, width)))
          << tokens << " " << every;
    }
  }
}

TEST_P(DecodeTest, AReturnedGraphGivesTheSameBytes) {
  for (const int32_t every : {1, -300}) {
    Shape shape;
    shape.lengths = {300, 570};
    Case made(shape);
    made.inputs.phase = Phase::kDecode;
    made.inputs.runs_as_windows = every < 0;
    AddLast(made, 20, every);
    made.AskForAll();
    const Outcome whole = Run(made);
    const auto graphs = GraphsOf(whole);
    for (size_t p = 0; p < made.problems.size(); ++p) made.problems[p].pattern = ExplicitEdges{&graphs[p], true};
    EXPECT_TRUE(SameBytes(Run(made).out, whole.out)) << every;
  }
}

}  // namespace
}  // namespace edgewise
