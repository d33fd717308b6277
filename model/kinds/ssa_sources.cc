#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/draw/permutation.h"
#include "model/kinds/ssa.h"

namespace edgewise {
namespace {

using Memory = std::pmr::memory_resource*;

// The two sequences of a pair draw apart. The sequences of a causal model are parts of one text and draw alike.
RandomKey KeyOf(const AttentionSpec& choice, uint32_t side) {
  return {choice.seed, choice.sample, static_cast<uint32_t>(choice.layer), choice.config->causal ? 0 : side};
}

int32_t CeilDivide(int32_t a, int32_t b) { return (a - 1) / b + 1; }

// The first `kept` places of a uniform permutation of 0 .. length - 1, ascending.
Places UniformSources(const RandomKey& key, int32_t length, int32_t kept, Memory memory) {
  std::pmr::vector<std::pair<uint64_t, int32_t>> order(length, memory);
  for (int32_t j = 0; j < length; ++j) order[j] = {OrderUniform(key, j), j};
  std::nth_element(order.begin(), order.begin() + kept - 1, order.end());
  Places sources(kept, memory);
  for (int32_t j = 0; j < kept; ++j) sources[j] = order[j].second;
  std::sort(sources.begin(), sources.end());
  return sources;
}

// argsort(j + scale * normals[j]); of equal keys the lower index comes first.
Places Shuffle(const std::pmr::vector<double>& normals, double scale) {
  std::pmr::vector<double> keys(normals.size(), normals.get_allocator());
  for (size_t j = 0; j < keys.size(); ++j) keys[j] = OrderKey(static_cast<uint32_t>(j), scale, normals[j]);
  Places order(keys.size(), normals.get_allocator());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return keys[a] < keys[b] || (keys[a] == keys[b] && a < b); });
  return order;
}

// An upper bound of the normal number of a block that takes no logarithm: -ln u1 is below (leading zeros of word 0,
// plus 1) * ln 2, and the cosine is positive in the first and the last quarter turn only.
double NormalBound(const PhiloxBlock& block) {
  static const std::vector<double> bounds = [] {
    std::vector<double> table;
    for (int zeros = 0; zeros <= 32; ++zeros)
      table.push_back(std::sqrt(2.0 * (zeros + 1) * std::log(2.0)) * (1 + 1e-9));
    return table;
  }();
  const uint32_t quarter = uint32_t{1} << 30;
  return block.word[1] - quarter <= 2 * quarter ? 1e-9 : bounds[std::countl_zero(block.word[0])];
}

// The last `count` places of argsort(j + scale * z_j) over 0 .. end - 1, ascending by position. The loop goes from the
// last position down, skips positions that cannot be among them, mostly before it takes a logarithm, and stops where no
// position can.
Places LastOfShuffle(const RandomKey& key, uint32_t window, int32_t end, int32_t count, double scale, Memory memory) {
  constexpr double kMostNormal = 6.8;  // u1 is at least 2^-33
  std::pmr::vector<std::pair<double, int32_t>> last(memory);
  last.reserve(2 * static_cast<size_t>(count));
  double least = -std::numeric_limits<double>::infinity();  // `count` places looked at so far have at least this key
  const auto keep_largest = [&] {
    std::nth_element(last.begin(), last.begin() + count - 1, last.end(), std::greater<>());
    last.resize(count);
    least = last[count - 1].first;
  };
  for (int32_t j = end - 1; j >= 0 && OrderKey(j, scale, kMostNormal) >= least; --j) {
    const PhiloxBlock block = OrderBlock(key, window, j, kStreamOrder);
    if (OrderKey(j, scale, NormalBound(block)) < least) continue;
    last.emplace_back(OrderKey(j, scale, NormalOf(block)), j);
    if (last.size() == 2 * static_cast<size_t>(count)) keep_largest();
  }
  keep_largest();
  Places places(count, memory);
  for (int32_t i = 0; i < count; ++i) places[i] = last[i].second;
  std::sort(places.begin(), places.end());
  return places;
}

// [rows * columns]: the positions of rows 0 .. rows - 1 of the grid, shuffled within each row, then within each column.
Places ShuffleGrid(const RandomKey& key, uint32_t window, int32_t rows, const AttentionConfig& attention,
                   Memory memory) {
  const int32_t columns = attention.grid_columns;
  const double scale_columns = attention.sigma * columns, scale_rows = attention.sigma * attention.grid_rows;
  Places grid(static_cast<size_t>(rows) * columns, memory), shuffled(grid.size(), memory);
  std::pmr::vector<double> normals(columns, memory);
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t c = 0; c < columns; ++c) normals[c] = OrderNormal(key, window, r * columns + c, kStreamOrder);
    const Places order = Shuffle(normals, scale_columns);
    for (int32_t c = 0; c < columns; ++c) grid[r * columns + c] = r * columns + order[c];
  }
  normals.resize(rows);
  for (int32_t c = 0; c < columns; ++c) {
    for (int32_t r = 0; r < rows; ++r) normals[r] = OrderNormal(key, window, r * columns + c, kStreamRows);
    const Places order = Shuffle(normals, scale_rows);
    for (int32_t r = 0; r < rows; ++r) shuffled[r * columns + c] = grid[order[r] * columns + c];
  }
  return shuffled;
}

// Places begin .. end - 1 of a shuffle, ascending.
Places Sorted(const Places& order, int32_t begin, int32_t end) {
  Places part(order.begin() + begin, order.begin() + end, order.get_allocator());
  std::sort(part.begin(), part.end());
  return part;
}

// Makes the groups of one sequence, from the first query on.
class GroupBuilder {
 public:
  GroupBuilder(const AttentionSpec& choice, const QueryRange& range)
      : sequence_(*range.sequence), groups_(NoGroups(choice, range)) {}

  // The number of valid tokens before `position`.
  int32_t TokenAt(int32_t position) const {
    const auto& positions = sequence_.positions;
    return static_cast<int32_t>(std::lower_bound(positions.begin(), positions.end(), position) - positions.begin());
  }
  // The next group: the queries before token `end` attend to `tokens` (ascending). No group where there is no query.
  void AddTokens(int32_t end, std::span<const int32_t> tokens) {
    if (end <= groups_.group_begin.back()) return;
    groups_.group_begin.push_back(end);
    groups_.keys.insert(groups_.keys.end(), tokens.begin(), tokens.end());
    groups_.key_offsets.push_back(static_cast<int64_t>(groups_.keys.size()));
  }
  // The same by position, without pads and places beyond the text.
  void AddPositions(int32_t end, std::span<const int32_t> places) {
    const auto& positions = sequence_.positions;
    Places tokens(groups_.keys.get_allocator());
    size_t token = 0;
    for (int32_t place : places) {
      if (place > positions.back()) break;
      token = std::lower_bound(positions.begin() + token, positions.end(), place) - positions.begin();
      if (positions[token] == place) tokens.push_back(static_cast<int32_t>(token));
    }
    AddTokens(TokenAt(end), tokens);
  }
  bool HasQueriesBefore(int32_t position) const { return TokenAt(position) > groups_.group_begin.back(); }
  GroupedKeys Take() { return std::move(groups_); }

 private:
  const ModelSequence& sequence_;
  GroupedKeys groups_;
};

// The first place of window a, where `count` windows share `length` places; the length for a = count.
int32_t WindowBegin(int32_t a, int32_t length, int32_t count) {
  return static_cast<int32_t>(static_cast<int64_t>(a) * length / count);
}

// W, the positions of a window of bias local, of a causal model.
int32_t WindowSize(const ModelConfig& config, const AttentionConfig& attention) {
  return attention.window_tokens > 0 ? attention.window_tokens
                                     : CeilDivide(config.max_position_embeddings, attention.windows);
}

// The noise of bias local, in places, where `length` places are shuffled.
double NoiseOf(const AttentionConfig& attention, int32_t length) {
  return attention.window_tokens > 0 ? attention.sigma : attention.sigma * length;
}

// The window of a position. The windows of a causal model divide its context, whatever the text. Bias none has one.
int32_t WindowOf(const ModelConfig& config, const AttentionConfig& attention, int32_t position) {
  if (!attention.local) return 0;
  if (attention.grid_rows > 0) {
    // The last window whose first row is at most this one.
    const int64_t count = std::min(attention.windows, attention.grid_rows), row = position / attention.grid_columns;
    return static_cast<int32_t>(((row + 1) * count - 1) / attention.grid_rows);
  }
  return position / WindowSize(config, attention);
}

// The first position of a window of a causal model, and the position behind its last.
std::pair<int32_t, int32_t> Window(const ModelConfig& config, const AttentionConfig& attention, int32_t window) {
  const int32_t length = config.max_position_embeddings;
  if (!attention.local) return {0, length};
  if (attention.grid_rows > 0) {
    const int32_t count = std::min(attention.windows, attention.grid_rows);
    return {WindowBegin(window, attention.grid_rows, count) * attention.grid_columns,
            WindowBegin(window + 1, attention.grid_rows, count) * attention.grid_columns};
  }
  const int32_t size = WindowSize(config, attention);
  return {window * size, static_cast<int32_t>(std::min<int64_t>(int64_t{size} * (window + 1), length))};
}

// The number of sources among `length` places with bias none.
int32_t NumSources(const AttentionConfig& attention, int32_t length) {
  return std::min(length, attention.keep > 0 ? attention.keep : CeilDivide(length, attention.windows));
}

// The groups of a causal model: windows of the context, from the window of the first query on.
GroupedKeys CausalGroups(const AttentionSpec& choice, const QueryRange& range) {
  const std::vector<int32_t>& positions = range.sequence->positions;
  GroupBuilder groups(choice, range);
  const int32_t last = WindowOf(*choice.config, *choice.attention, positions.back());
  for (int32_t a = WindowOf(*choice.config, *choice.attention, positions[range.first_query]); a <= last; ++a) {
    const int32_t end = Window(*choice.config, *choice.attention, a).second;
    if (!groups.HasQueriesBefore(end)) continue;
    if (choice.sources != nullptr) {
      groups.AddPositions(end, choice.sources->Get(choice, a));
    } else {
      groups.AddPositions(end, SsaSources(choice, a));
    }
  }
  return groups.Take();
}

GroupedKeys GridGroups(const AttentionSpec& choice, const RandomKey& key, const QueryRange& range) {
  const AttentionConfig& attention = *choice.attention;
  const Places shuffled = ShuffleGrid(key, 0, attention.grid_rows, attention, choice.memory);
  const int32_t count = std::min(attention.windows, attention.grid_rows);
  GroupBuilder groups(choice, range);
  for (int32_t a = 0; a < count; ++a) {
    const int32_t begin = WindowBegin(a, attention.grid_rows, count) * attention.grid_columns;
    const int32_t end = WindowBegin(a + 1, attention.grid_rows, count) * attention.grid_columns;
    if (groups.HasQueriesBefore(end)) groups.AddPositions(end, Sorted(shuffled, begin, end));
  }
  return groups.Take();
}

}  // namespace

Places SsaSources(const AttentionSpec& choice, int32_t window) {
  const AttentionConfig& attention = *choice.attention;
  const RandomKey key = KeyOf(choice, 0);
  const int32_t length = choice.config->max_position_embeddings;
  if (!attention.local) return UniformSources(key, length, NumSources(attention, length), choice.memory);
  const auto [begin, end] = Window(*choice.config, attention, window);
  if (attention.grid_rows > 0) {
    return Sorted(ShuffleGrid(key, window, end / attention.grid_columns, attention, choice.memory), begin, end);
  }
  return LastOfShuffle(key, window, end, end - begin, NoiseOf(attention, length), choice.memory);
}

std::span<const int32_t> SourceCache::Get(const AttentionSpec& choice, int32_t window) {
  Window& last = windows_[{choice.layer, choice.sample}];
  if (last.index != window) {
    const Places drawn = SsaSources(choice, window);
    last.index = window;
    last.sources.assign(drawn.begin(), drawn.end());
  }
  return last.sources;
}

GroupedKeys SsaGroups(const AttentionSpec& choice, uint32_t side, const QueryRange& range) {
  if (choice.config->causal) return CausalGroups(choice, range);
  const AttentionConfig& attention = *choice.attention;
  const RandomKey key = KeyOf(choice, side);
  if (attention.grid_rows > 0) return GridGroups(choice, key, range);
  const int32_t tokens = range.sequence->valid();
  GroupBuilder groups(choice, range);
  if (!attention.local) {
    groups.AddTokens(tokens, UniformSources(key, tokens, NumSources(attention, tokens), choice.memory));
    return groups.Take();
  }
  std::pmr::vector<double> normals(tokens, choice.memory);
  for (int32_t t = 0; t < tokens; ++t) normals[t] = OrderNormal(key, 0, t, kStreamOrder);
  const Places order = Shuffle(normals, NoiseOf(attention, tokens));
  const int32_t windows = attention.window_tokens > 0 ? CeilDivide(tokens, attention.window_tokens) : attention.windows;
  const int32_t count = std::min(windows, tokens);
  for (int32_t a = 0; a < count; ++a) {
    const int32_t end = WindowBegin(a + 1, tokens, count);
    groups.AddTokens(end, Sorted(order, WindowBegin(a, tokens, count), end));
  }
  return groups.Take();
}

}  // namespace edgewise
