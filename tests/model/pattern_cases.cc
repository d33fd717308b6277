#include "tests/model/pattern_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "kernels/draw/permutation.h"
#include "model/checkpoint/parse_config.h"
#include "model/kinds/kind.h"

namespace edgewise::testing {

using nlohmann::json;

ModelConfig PatternConfig(bool causal, int32_t longest, const json& attention) {
  json config = {{"task", causal ? "causal-lm" : "sequence-classification"},
                 {"vocab_size", 50},
                 {"hidden_size", 8},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2},
                 {"intermediate_size", 8},
                 {"max_position_embeddings", longest},
                 {"attention", attention}};
  if (!causal) config["num_labels"] = 2;
  if (!causal) config["pooling"] = {{"kind", "mean"}, {"divisor", "valid"}};
  const auto parsed = ParseModelConfig(config.dump());
  if (!parsed.ok()) throw std::runtime_error(std::string(parsed.status().message()));
  return *parsed;
}

ModelSequence PatternSequence(int32_t length, const std::vector<int32_t>& pads) {
  ModelSequence sequence;
  sequence.token_ids.assign(length, 1);
  for (int32_t pad : pads) sequence.token_ids[pad] = 0;
  for (int32_t p = 0; p < length; ++p) {
    if (sequence.token_ids[p] != 0) sequence.positions.push_back(p);
  }
  return sequence;
}

ModelSequence RandomSequence(int32_t length, double pads, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution is_pad(pads);
  std::vector<int32_t> chosen;
  for (int32_t p = 1; p < length; ++p) {
    if (is_pad(random)) chosen.push_back(p);
  }
  return PatternSequence(length, chosen);
}

AttentionSpec ChoiceOf(const ModelConfig& config, uint64_t seed) {
  AttentionSpec choice;
  choice.config = &config;
  choice.attention = &config.attention[0];
  choice.seed = seed;
  return choice;
}

Rows RowsOf(const AttentionPattern& pattern, const QueryRange& range) {
  const int32_t tokens = range.sequence->valid();
  Rows rows;
  if (const auto* all = std::get_if<AllPairs>(&pattern)) {
    for (int32_t i = range.first_query; i < tokens; ++i) {
      auto& row = rows.emplace_back(all->causal ? i + 1 : tokens);
      std::iota(row.begin(), row.end(), 0);
    }
    return rows;
  }
  const auto& groups = std::get<GroupedKeys>(pattern);
  EXPECT_EQ(groups.group_begin.front(), range.first_query);
  EXPECT_EQ(groups.group_begin.back(), tokens);
  EXPECT_EQ(groups.key_offsets.size(), groups.group_begin.size());
  EXPECT_EQ(groups.key_offsets.front(), 0);
  EXPECT_EQ(groups.key_offsets.back(), static_cast<int64_t>(groups.keys.size()));
  for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
    EXPECT_LT(groups.group_begin[g], groups.group_begin[g + 1]);
    const std::vector<int32_t> keys(groups.keys.begin() + groups.key_offsets[g],
                                    groups.keys.begin() + groups.key_offsets[g + 1]);
    for (size_t k = 0; k < keys.size(); ++k) {
      EXPECT_TRUE(keys[k] >= 0 && keys[k] < tokens && (k == 0 || keys[k] > keys[k - 1]));
    }
    for (int32_t query = groups.group_begin[g]; query < groups.group_begin[g + 1]; ++query) {
      auto& row = rows.emplace_back();
      for (int32_t key : keys) {
        if (!groups.causal || key <= query) row.push_back(key);
      }
    }
  }
  return rows;
}

Rows RowsOf(const AttentionSpec& choice, const ModelSequence& sequence) {
  const QueryRange range{&sequence};
  const MemberPatterns made = MakePatterns(choice, {&range, 1}, kNoCap);
  EXPECT_FALSE(made.capped);
  return RowsOf(made.patterns[0], range);
}

uint64_t CountEdges(const Rows& rows) {
  uint64_t edges = 0;
  for (const auto& row : rows) edges += row.size();
  return edges;
}

bool IsSubset(const Rows& smaller, const Rows& larger) {
  if (smaller.size() != larger.size()) return false;
  for (size_t i = 0; i < smaller.size(); ++i) {
    if (!std::includes(larger[i].begin(), larger[i].end(), smaller[i].begin(), smaller[i].end())) return false;
  }
  return true;
}

namespace {

using Pairs = std::vector<std::vector<bool>>;  // [query position][key position]

std::vector<int32_t> ArgSort(const std::vector<double>& keys) {
  std::vector<int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
  return order;
}

void Connect(Pairs& pairs, int32_t query, int32_t key) {
  const int32_t length = static_cast<int32_t>(pairs.size());
  if (query < length && key < length) pairs[query][key] = true;
}

Pairs SlowSsaLocal(const AttentionSpec& choice, const RandomKey& key, const ModelSequence& sequence) {
  const AttentionConfig& ssa = *choice.attention;
  const int32_t longest = choice.config->max_position_embeddings, tokens = sequence.valid();
  Pairs pairs(sequence.length(), std::vector<bool>(sequence.length()));
  const int32_t given = ssa.window_tokens;
  const double noise = given > 0 ? ssa.sigma : ssa.sigma * (choice.config->causal ? longest : tokens);
  if (choice.config->causal) {
    const int32_t size =
        given > 0 ? given : static_cast<int32_t>(std::ceil(static_cast<double>(longest) / ssa.windows));
    for (int32_t a = 0; a * size < longest; ++a) {
      const int32_t end = std::min((a + 1) * size, longest);
      std::vector<double> keys;
      for (int32_t j = 0; j < end; ++j) keys.push_back(j + noise * OrderNormal(key, a, j, kStreamOrder));
      const std::vector<int32_t> order = ArgSort(keys);
      for (int32_t query = a * size; query < end; ++query) {
        for (int32_t place = a * size; place < end; ++place) Connect(pairs, query, order[place]);
      }
    }
    return pairs;
  }
  std::vector<double> keys;
  for (int32_t t = 0; t < tokens; ++t) keys.push_back(t + noise * OrderNormal(key, 0, t, kStreamOrder));
  const std::vector<int32_t> order = ArgSort(keys);
  const int64_t windows = given > 0 ? (tokens + given - 1) / given : std::min(ssa.windows, tokens);
  for (int64_t a = 0; a < windows; ++a) {
    for (int64_t i = a * tokens / windows; i < (a + 1) * tokens / windows; ++i) {
      for (int64_t j = a * tokens / windows; j < (a + 1) * tokens / windows; ++j) {
        pairs[sequence.positions[i]][sequence.positions[order[j]]] = true;
      }
    }
  }
  return pairs;
}

Pairs SlowSsaNone(const AttentionSpec& choice, const RandomKey& key, const ModelSequence& sequence) {
  const AttentionConfig& ssa = *choice.attention;
  const bool causal = choice.config->causal;
  const int32_t length = causal ? choice.config->max_position_embeddings : sequence.valid();
  std::vector<std::pair<uint64_t, int32_t>> order;
  for (int32_t j = 0; j < length; ++j) order.emplace_back(OrderUniform(key, j), j);
  std::sort(order.begin(), order.end());
  const int32_t keep =
      ssa.keep > 0 ? ssa.keep : static_cast<int32_t>(std::ceil(static_cast<double>(length) / ssa.windows));
  Pairs pairs(sequence.length(), std::vector<bool>(sequence.length()));
  for (int32_t k = 0; k < std::min(keep, length); ++k) {
    const int32_t source = causal ? order[k].second : sequence.positions[order[k].second];
    for (int32_t query = 0; query < sequence.length(); ++query) Connect(pairs, query, source);
  }
  return pairs;
}

Pairs SlowSsaGrid(const AttentionSpec& choice, const RandomKey& key, const ModelSequence& sequence) {
  const AttentionConfig& ssa = *choice.attention;
  const int32_t columns = ssa.grid_columns;
  const int64_t windows = std::min(ssa.windows, ssa.grid_rows);
  Pairs pairs(sequence.length(), std::vector<bool>(sequence.length()));
  for (int64_t a = 0; a < windows; ++a) {
    const int32_t begin = static_cast<int32_t>(a * ssa.grid_rows / windows);
    const int32_t end = static_cast<int32_t>((a + 1) * ssa.grid_rows / windows);
    const int32_t rows = choice.config->causal ? end : ssa.grid_rows;
    const uint32_t window = choice.config->causal ? static_cast<uint32_t>(a) : 0;
    std::vector<std::vector<int32_t>> grid(rows, std::vector<int32_t>(columns));
    for (int32_t r = 0; r < rows; ++r) {
      std::vector<double> keys;
      for (int32_t c = 0; c < columns; ++c) {
        keys.push_back(c + (ssa.sigma * columns) * OrderNormal(key, window, r * columns + c, kStreamOrder));
      }
      const std::vector<int32_t> order = ArgSort(keys);
      for (int32_t c = 0; c < columns; ++c) grid[r][c] = r * columns + order[c];
    }
    auto shuffled = grid;
    for (int32_t c = 0; c < columns; ++c) {
      std::vector<double> keys;
      for (int32_t r = 0; r < rows; ++r) {
        keys.push_back(r + (ssa.sigma * ssa.grid_rows) * OrderNormal(key, window, r * columns + c, kStreamRows));
      }
      const std::vector<int32_t> order = ArgSort(keys);
      for (int32_t r = 0; r < rows; ++r) shuffled[r][c] = grid[order[r]][c];
    }
    for (int32_t query = begin * columns; query < end * columns; ++query) {
      for (int32_t r = begin; r < end; ++r) {
        for (int32_t source : shuffled[r]) Connect(pairs, query, source);
      }
    }
  }
  return pairs;
}

bool InBlockPattern(const AttentionSpec& choice, int32_t row, int32_t column, int32_t size) {
  const AttentionConfig& block = *choice.attention;
  switch (block.pattern) {
    case BlockPattern::kDiagonal:
      return row == column;
    case BlockPattern::kLocal:
      return row - column <= block.width && column - row <= block.width;
    case BlockPattern::kStrided:
      return std::abs(row - column) % block.stride == 0;
    case BlockPattern::kFirstAndDiagonal:
      return column == 0 || row == column;
    case BlockPattern::kList:
      return std::count(block.blocks.begin(), block.blocks.end(), std::pair(row, column)) > 0;
    case BlockPattern::kLearned: {
      const int32_t all = (choice.config->max_position_embeddings - 1) / size + 1;
      return 1.0 / (1.0 + std::exp(-double{choice.block_scores[row * all + column]})) >= block.threshold;
    }
  }
  return false;
}

Pairs SlowBlocks(const AttentionSpec& choice, const ModelSequence& sequence) {
  const AttentionConfig& block = *choice.attention;
  int32_t size = block.block_size;
  if (size == 0) {
    const int32_t length =
        choice.config->causal ? choice.config->max_position_embeddings : sequence.positions.back() + 1;
    // alpha has few decimals in these tests: as written, times a million, is whole.
    const int64_t millionths = std::llround(block.alpha * 1e6);
    size = static_cast<int32_t>(std::clamp<int64_t>(millionths * length / 1000000, block.min_block, block.max_block));
  }
  Pairs pairs(sequence.length(), std::vector<bool>(sequence.length()));
  for (int32_t query = 0; query < sequence.length(); ++query) {
    for (int32_t key = 0; key < sequence.length(); ++key) {
      pairs[query][key] = InBlockPattern(choice, query / size, key / size, size);
    }
  }
  return pairs;
}

}  // namespace

Rows SlowRows(const AttentionSpec& choice, uint32_t side, const ModelSequence& sequence) {
  const RandomKey key{choice.seed, choice.sample, static_cast<uint32_t>(choice.layer), side};
  const AttentionConfig& attention = *choice.attention;
  const Pairs pairs = attention.kind == &kBlockKind ? SlowBlocks(choice, sequence)
                      : !attention.local            ? SlowSsaNone(choice, key, sequence)
                      : attention.grid_rows > 0     ? SlowSsaGrid(choice, key, sequence)
                                                    : SlowSsaLocal(choice, key, sequence);
  Rows rows;
  for (int32_t query : sequence.positions) {
    auto& row = rows.emplace_back();
    for (int32_t token = 0; token < sequence.valid(); ++token) {
      const int32_t position = sequence.positions[token];
      if (pairs[query][position] && (!choice.config->causal || position <= query)) row.push_back(token);
    }
  }
  return rows;
}

}  // namespace edgewise::testing
