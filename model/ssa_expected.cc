// The mean number of edges of SSA, over what its shuffles may be (docs/model-format.md, "Edges to expect").
#include <algorithm>
#include <mutex>
#include <optional>

#include "model/shuffle_law.h"
#include "model/ssa.h"

namespace edgewise {
namespace {

// Valid tokens that follow each other without pads: positions [begin, end).
struct Run {
  int32_t begin, end;
  bool operator==(const Run&) const = default;
};

std::vector<Run> RunsOf(const std::vector<int32_t>& positions) {
  std::vector<Run> runs;
  for (int32_t position : positions) {
    if (!runs.empty() && runs.back().end == position) {
      ++runs.back().end;
    } else {
      runs.push_back({position, position + 1});
    }
  }
  return runs;
}

// Everything that the mean of a locally biased kind depends on.
struct Shape {
  bool causal = false;
  int32_t length = 0, windows = 0, rows = 0, columns = 0, first = 0;  // first: position of the first query
  double sigma = 0.0;
  std::vector<Run> runs;
  bool operator==(const Shape&) const = default;
};

// The last means that were computed: all samples of all layers ask for the same few.
class Means {
 public:
  std::optional<double> Find(const Shape& shape) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(known_.begin(), known_.end(), [&](const auto& k) { return k.first == shape; });
    return known == known_.end() ? std::nullopt : std::optional(known->second);
  }
  void Add(const Shape& shape, double mean) {
    if (shape.runs.size() > kMostRuns) return;
    const std::lock_guard lock(mutex_);
    if (known_.size() < kShapes) known_.emplace_back();
    known_[next_] = {shape, mean};
    next_ = (next_ + 1) % kShapes;
  }

 private:
  static constexpr size_t kShapes = 64, kMostRuns = 16384;
  std::mutex mutex_;
  std::vector<std::pair<Shape, double>> known_;
  size_t next_ = 0;
};

// Positions below `position` that are expected in the last places of a shuffle of rows; of a sequence, a row is one.
double Before(const ShuffleLaw& law, int32_t columns, int32_t position) {
  const int32_t row = position / columns, rest = position % columns;
  const double before = law.Before(row);
  if (rest == 0) return before * columns;
  return before * (columns - rest) + law.Before(row + 1) * rest;
}

// Per window: every query attends to those of the last places of the window's own shuffle that do not come after it.
double CausalMean(const LayerChoice& choice, const Shape& shape) {
  const ModelConfig& config = *choice.config;
  const AttentionConfig& attention = *choice.attention;
  const int32_t columns = std::max(1, shape.columns);
  ShuffleLaws laws(shape.sigma * (shape.rows > 0 ? shape.rows : shape.length));
  double edges = 0.0;
  const int32_t last = SsaWindowOf(config, attention, shape.runs.back().end - 1);
  for (int32_t a = SsaWindowOf(config, attention, shape.first); a <= last; ++a) {
    const auto [begin, end] = SsaWindow(config, attention, a);
    const ShuffleLaw law = laws.Last(end / columns, (end - begin) / columns);
    double sources = 0.0;  // of the runs before
    for (const Run& run : shape.runs) {
      if (run.begin >= end) break;
      const double none = Before(law, columns, run.begin), earlier = sources - none;
      const int32_t run_end = std::min(run.end, end);
      for (int32_t query = std::max({run.begin, begin, shape.first}); query < run_end; ++query) {
        edges += earlier + Before(law, columns, query + 1);
      }
      sources = earlier + Before(law, columns, run_end);
    }
  }
  return edges;
}

// One shuffle of the whole grid, and every query attends to all sources of its window.
double GridMean(const AttentionConfig& attention, const Shape& shape) {
  const int32_t count = std::min(attention.windows, attention.grid_rows);
  ShuffleLaws laws(shape.sigma * shape.rows);
  double edges = 0.0, sources = 0.0;  // sources: from the window behind on
  for (int32_t a = count - 1; a >= 0; --a) {
    const int32_t first_row = WindowBegin(a, attention.grid_rows, count);
    const int32_t begin = std::max(first_row * shape.columns, shape.first);
    const int32_t end = WindowBegin(a + 1, attention.grid_rows, count) * shape.columns;
    const ShuffleLaw law = laws.Last(shape.rows, shape.rows - first_row);
    int32_t queries = 0;
    double from_here = 0.0;
    for (const Run& run : shape.runs) {
      queries += std::max(0, std::min(run.end, end) - std::max(run.begin, begin));
      from_here += Before(law, shape.columns, run.end) - Before(law, shape.columns, run.begin);
    }
    edges += queries * (from_here - sources);
    sources = from_here;
  }
  return edges;
}

}  // namespace

double ExpectedSsaEdges(const LayerChoice& choice, const QueryRange& range) {
  const ModelConfig& config = *choice.config;
  const AttentionConfig& attention = *choice.attention;
  const std::vector<int32_t>& positions = range.sequence->positions;
  const int32_t tokens = range.sequence->valid(), length = config.causal ? config.max_position_embeddings : tokens;
  if (!attention.local) {
    const auto pairs = static_cast<double>(PairsOf(config, range));
    return pairs * SsaKept(attention, length) / length;
  }
  if (!config.causal && attention.grid_rows == 0) {
    const int32_t count = std::min(attention.windows, tokens);
    double edges = 0.0;
    for (int32_t a = 0; a < count; ++a) {
      const int32_t begin = WindowBegin(a, tokens, count), end = WindowBegin(a + 1, tokens, count);
      edges += static_cast<double>(end - begin) * std::max(0, end - std::max(begin, range.first_query));
    }
    return edges;
  }
  static Means means;
  Shape shape{config.causal,          config.max_position_embeddings, attention.windows, attention.grid_rows,
              attention.grid_columns, positions[range.first_query],   attention.sigma,   RunsOf(positions)};
  if (const std::optional<double> known = means.Find(shape)) return *known;
  const double mean = config.causal ? CausalMean(choice, shape) : GridMean(attention, shape);
  means.Add(shape, mean);
  return mean;
}

}  // namespace edgewise
