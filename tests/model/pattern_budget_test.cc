// The edges that a budget leaves of the patterns of SSA and of blocks: never more than the cap, never less than could
// be.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "model/kinds/kind.h"
#include "tests/model/pattern_kinds.h"

namespace edgewise::testing {
namespace {

// One input: the rows of all its sequences.
struct Input {
  std::vector<ModelSequence> sequences;
  std::vector<QueryRange> Ranges(int32_t first_query = 0) const {
    std::vector<QueryRange> ranges;
    for (const ModelSequence& sequence : sequences) {
      ranges.push_back({&sequence, std::min(first_query, sequence.valid() - 1)});
    }
    return ranges;
  }
};

std::vector<Rows> RowsOfEach(const MemberPatterns& made, const std::vector<QueryRange>& ranges) {
  std::vector<Rows> rows;
  for (size_t s = 0; s < ranges.size(); ++s) rows.push_back(testing::RowsOf(made.patterns[s], ranges[s]));
  return rows;
}

uint64_t Count(const std::vector<Rows>& sequences) {
  uint64_t edges = 0;
  for (const Rows& rows : sequences) edges += CountEdges(rows);
  return edges;
}

bool IsSubset(const std::vector<Rows>& smaller, const std::vector<Rows>& larger) {
  for (size_t s = 0; s < smaller.size(); ++s) {
    if (!testing::IsSubset(smaller[s], larger[s])) return false;
  }
  return true;
}

// The rows with only those keys that `keep` names, by (sequence, query, key).
template <typename Keep>
std::vector<Rows> Filter(const std::vector<Rows>& all, const std::vector<QueryRange>& ranges, const Keep& keep) {
  std::vector<Rows> kept(all.size());
  for (size_t s = 0; s < all.size(); ++s) {
    for (size_t i = 0; i < all[s].size(); ++i) {
      auto& row = kept[s].emplace_back();
      for (int32_t key : all[s][i]) {
        if (keep(s, ranges[s].first_query + static_cast<int32_t>(i), key)) row.push_back(key);
      }
    }
  }
  return kept;
}

// The window of a query, found by going through all of them.
int32_t WindowOf(const AttentionSpec& choice, const ModelSequence& sequence, int32_t query) {
  const AttentionConfig& ssa = *choice.attention;
  if (!ssa.local) return 0;
  const int32_t longest = choice.config->max_position_embeddings, position = sequence.positions[query];
  if (ssa.grid_rows > 0) {
    const int32_t windows = std::min(ssa.windows, ssa.grid_rows);
    for (int32_t a = 0;; ++a) {
      if (position < (a + 1) * ssa.grid_rows / windows * ssa.grid_columns) return a;
    }
  }
  const int32_t given = ssa.window_tokens;
  if (choice.config->causal) return position / (given > 0 ? given : (longest + ssa.windows - 1) / ssa.windows);
  const int32_t windows = given > 0 ? (sequence.valid() + given - 1) / given : std::min(ssa.windows, sequence.valid());
  for (int32_t a = 0;; ++a) {
    if (query < (a + 1) * sequence.valid() / windows) return a;
  }
}

// 0 .. count - 1 in the order of their bits read backwards.
std::vector<size_t> BackwardBits(size_t count) {
  size_t bits = 0;
  while ((size_t{1} << bits) < count) ++bits;
  const auto reversed = [&](size_t i) {
    size_t value = 0;
    for (size_t b = 0; b < bits; ++b) value |= (i >> b & 1) << (bits - 1 - b);
    return value;
  };
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return reversed(a) < reversed(b); });
  return order;
}

// m sources of every window, then one more of the first windows, counting edges anew every time.
std::vector<Rows> SlowSsaBudget(const AttentionSpec& choice, const std::vector<QueryRange>& ranges,
                                const std::vector<Rows>& all, uint64_t allowance) {
  const uint64_t heads = choice.config->num_attention_heads;
  std::map<std::pair<size_t, int32_t>, std::set<int32_t>> sources;  // of (sequence, window)
  std::map<std::pair<size_t, int32_t>, std::map<int32_t, size_t>> rank;
  for (size_t s = 0; s < all.size(); ++s) {
    for (size_t i = 0; i < all[s].size(); ++i) {
      const int32_t query = ranges[s].first_query + static_cast<int32_t>(i);
      sources[{s, WindowOf(choice, *ranges[s].sequence, query)}].insert(all[s][i].begin(), all[s][i].end());
    }
  }
  size_t most = 0;
  for (const auto& [window, keys] : sources) {
    const std::vector<int32_t> sorted(keys.begin(), keys.end());
    const std::vector<size_t> order = BackwardBits(sorted.size());
    for (size_t r = 0; r < order.size(); ++r) rank[window][sorted[order[r]]] = r;
    most = std::max(most, sorted.size());
  }
  std::map<std::pair<size_t, int32_t>, size_t> kept;
  const auto rows = [&] {
    return Filter(all, ranges, [&](size_t s, int32_t query, int32_t key) {
      const std::pair<size_t, int32_t> window = {s, WindowOf(choice, *ranges[s].sequence, query)};
      return rank[window][key] < kept[window];
    });
  };
  for (size_t m = most; m >= 1; --m) {
    for (auto& [window, keys] : sources) kept[window] = m;
    if (heads * Count(rows()) <= allowance) break;
  }
  for (auto& [window, keys] : sources) {
    ++kept[window];
    if (heads * Count(rows()) <= allowance) continue;
    --kept[window];
    break;
  }
  return rows();
}

// Drops block after block until the rest fits.
std::vector<Rows> SlowBlockBudget(const AttentionSpec& choice, const std::vector<QueryRange>& ranges,
                                  const std::vector<Rows>& all, uint64_t allowance,
                                  int32_t (*size_of)(const AttentionSpec&, const ModelSequence&)) {
  const AttentionConfig& attention = *choice.attention;
  using Name = std::tuple<size_t, int32_t, int32_t>;  // sequence, row, column
  std::map<Name, uint64_t> edges;
  const auto name = [&](size_t s, int32_t query, int32_t key) {
    const int32_t size = size_of(choice, *ranges[s].sequence);
    const std::vector<int32_t>& positions = ranges[s].sequence->positions;
    return Name(s, positions[query] / size, positions[key] / size);
  };
  Filter(all, ranges, [&](size_t s, int32_t query, int32_t key) { return ++edges[name(s, query, key)] > 0; });
  std::vector<Name> droppable;  // the last one goes first
  for (const auto& [block, count] : edges) {
    if (std::get<1>(block) != std::get<2>(block)) droppable.push_back(block);
  }
  const auto order = [&](const Name& block) {
    const auto [s, row, column] = block;
    double score = 0.0;
    if (attention.pattern == BlockPattern::kLearned) {
      const int32_t blocks = (choice.config->max_position_embeddings + attention.block_size - 1) / attention.block_size;
      score = choice.block_scores[row * blocks + column];
    }
    return std::tuple(-score, std::abs(row - column), s, row, column);
  };
  std::sort(droppable.begin(), droppable.end(), [&](const Name& a, const Name& b) { return order(a) < order(b); });
  uint64_t left = Count(all);
  std::set<Name> dropped;
  while (choice.config->num_attention_heads * left > allowance && !droppable.empty()) {
    left -= edges[droppable.back()];
    dropped.insert(droppable.back());
    droppable.pop_back();
  }
  return Filter(all, ranges,
                [&](size_t s, int32_t query, int32_t key) { return dropped.count(name(s, query, key)) == 0; });
}

int32_t SizeOf(const AttentionSpec& choice, const ModelSequence& sequence) {
  const AttentionConfig& attention = *choice.attention;
  if (attention.block_size > 0) return attention.block_size;
  const int32_t length = choice.config->causal ? choice.config->max_position_embeddings : sequence.positions.back() + 1;
  return std::clamp(29 * length / 100, attention.min_block, attention.max_block);  // alpha is 0.29 here
}

class PatternBudgetTest : public KindTest {
 protected:
  Input MakeInput(uint64_t seed) const {
    Input input;
    for (uint64_t s = 0; s < (seed % 3 == 0 ? 2u : 1u); ++s) {
      const int32_t length = 1 + static_cast<int32_t>((seed * 37 + s * 11) % kLongest);
      input.sequences.push_back(RandomSequence(length, seed % 2 == 0 ? 0.0 : 0.3, seed + s));
    }
    return input;
  }
};

TEST_P(PatternBudgetTest, IsKeptToTheEdgeAndOnlyDropsWhatItMust) {
  const uint64_t heads = config_.num_attention_heads;
  std::mt19937_64 random(3);
  int capped = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Input input = MakeInput(seed);
    // Whole texts, and the last rows of a growing one.
    const std::vector<QueryRange> ranges = input.Ranges(GetParam().causal && seed % 4 == 1 ? 20 : 0);
    const AttentionSpec choice = Choice(seed);
    const MemberPatterns free = MakePatterns(choice, ranges, kNoCap);
    const std::vector<Rows> all = RowsOfEach(free, ranges);
    const uint64_t least = LeastEdges(choice, ranges), most = heads * Count(all);
    for (int i = 0; i < 40; ++i) {
      const uint64_t allowance = least + random() % (std::max(most, least) - least + 4);
      const MemberPatterns made = MakePatterns(choice, ranges, allowance);
      const std::vector<Rows> rows = RowsOfEach(made, ranges);
      ASSERT_LE(heads * Count(rows), allowance);
      ASSERT_EQ(made.capped, allowance < most);
      ASSERT_EQ(made.capped, rows != all);
      ASSERT_EQ(rows, ssa() ? SlowSsaBudget(choice, ranges, all, allowance)
                            : SlowBlockBudget(choice, ranges, all, allowance, SizeOf))
          << "seed " << seed << ", allowance " << allowance << " of " << least << " to " << most;
      for (size_t s = 0; ssa() && s < rows.size(); ++s) {
        for (size_t q = 0; q < rows[s].size(); ++q) ASSERT_EQ(rows[s][q].empty(), all[s][q].empty());
      }
      capped += made.capped;
    }
  }
  // Kinds of which nothing can be dropped: one source per query, diagonals only.
  if (capped == 0) {
    const std::string& name = GetParam().name;
    EXPECT_TRUE(name.find("diagonal") != std::string::npos || name.find("one_") != std::string::npos ||
                name.find("width_zero") != std::string::npos || name.find("more_windows") != std::string::npos)
        << "no cap was too small";
  }
}

TEST_P(PatternBudgetTest, ALargerOneOnlyAddsEdges) {
  const uint64_t heads = config_.num_attention_heads;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const Input input = MakeInput(seed);
    const std::vector<QueryRange> ranges = input.Ranges();
    const AttentionSpec choice = Choice(seed);
    const uint64_t most = heads * Count(RowsOfEach(MakePatterns(choice, ranges, kNoCap), ranges));
    std::vector<Rows> before = RowsOfEach(MakePatterns(choice, ranges, LeastEdges(choice, ranges)), ranges);
    for (uint64_t allowance = LeastEdges(choice, ranges); allowance <= most + 1; allowance += 1 + most / 150) {
      const std::vector<Rows> rows = RowsOfEach(MakePatterns(choice, ranges, allowance), ranges);
      ASSERT_TRUE(IsSubset(before, rows)) << allowance;
      before = rows;
    }
  }
}

TEST_P(PatternBudgetTest, TheLeastDoesNotDependOnTheDrawAndIsWhatIsNeverDropped) {
  const uint64_t heads = config_.num_attention_heads;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Input input = MakeInput(seed);
    const std::vector<QueryRange> ranges = input.Ranges(GetParam().causal && seed % 4 == 1 ? 20 : 0);
    const uint64_t least = LeastEdges(Choice(1), ranges);
    uint64_t pairs = 0, queries = 0, diagonal = 0;
    for (size_t s = 0; s < ranges.size(); ++s) {
      const ModelSequence& sequence = *ranges[s].sequence;
      pairs += heads * PairsOf(config_, ranges[s]);
      queries += heads * (sequence.valid() - ranges[s].first_query);
      if (ssa()) continue;
      const Rows rows = SlowRows(Choice(1), static_cast<uint32_t>(s), sequence);
      const int32_t size = SizeOf(Choice(1), sequence);
      for (int32_t i = ranges[s].first_query; i < sequence.valid(); ++i) {
        for (int32_t key : rows[i])
          diagonal += heads * (sequence.positions[i] / size == sequence.positions[key] / size);
      }
    }
    EXPECT_LE(least, pairs);
    EXPECT_EQ(least, ssa() ? queries : diagonal);
    EXPECT_EQ(LeastEdges(Choice(2), ranges), least);
    // A cap below it is refused before; nothing is dropped that could not be.
    const std::vector<Rows> free = RowsOfEach(MakePatterns(Choice(1), ranges, kNoCap), ranges);
    const std::vector<Rows> rows = RowsOfEach(MakePatterns(Choice(1), ranges, least), ranges);
    const std::vector<Rows> none = RowsOfEach(MakePatterns(Choice(1), ranges, 0), ranges);
    EXPECT_LE(heads * Count(rows), least);
    EXPECT_LE(heads * Count(none), heads * Count(rows));
    if (!ssa()) {
      EXPECT_EQ(none, rows) << "the diagonal";
      continue;
    }
    for (size_t s = 0; s < none.size(); ++s) {
      for (size_t i = 0; i < none[s].size(); ++i) EXPECT_EQ(none[s][i].size(), free[s][i].empty() ? 0u : 1u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PatternBudgetTest, ::testing::ValuesIn(AllKinds()), KindName);

// Half of a window's sources are every second one.
TEST(PatternBudgetTest, TheSourcesThatAreKeptSpreadOverTheWindow) {
  const ModelConfig config =
      PatternConfig(false, 64, nlohmann::json::parse(R"({"kind": "ssa", "bias": "local", "windows": 2, "sigma": 0})"));
  const ModelSequence sequence = PatternSequence(64);
  const QueryRange range{&sequence};
  for (int32_t kept = 1; kept <= 32; kept *= 2) {
    const uint64_t edges = 2 * 64 * static_cast<uint64_t>(kept);
    const MemberPatterns made = MakePatterns(ChoiceOf(config, 1), {&range, 1}, edges);
    const Rows rows = testing::RowsOf(made.patterns[0], range);
    for (int32_t i = 0; i < 64; ++i) {
      ASSERT_EQ(rows[i].size(), static_cast<size_t>(kept));
      for (int32_t k = 0; k < kept; ++k) ASSERT_EQ(rows[i][k], i / 32 * 32 + k * 32 / kept);
    }
  }
}

}  // namespace
}  // namespace edgewise::testing
