#include "client/cli/plot_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

using GraphHead = v1::Graph::Head;

constexpr int kMaxNamedColumns = 40;
constexpr int kMaxGridCells = 1200;   // of all heads of a layer side by side
constexpr int kMaxBinnedCells = 128;  // larger, so that a single edge shows

int CeilDivide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The index of the part that a position is in, where `positions` are cut into `cells` equal parts.
int CellOf(int position, int positions, int cells) {
  return static_cast<int>(static_cast<int64_t>(position) * cells / positions);
}

// Calls visit(query, key, weight) for every edge; weights that are not there are equal and sum to 1.
template <typename Visit>
void ForEachEdge(const GraphHead& head, Visit visit) {
  for (int query = 0; query + 1 < head.row_offsets_size(); ++query) {
    const int start = static_cast<int>(head.row_offsets(query));
    const int end = std::min(static_cast<int>(head.row_offsets(query + 1)), head.keys_size());
    for (int e = start; e < end; ++e) {
      const int key = static_cast<int>(head.keys(e));
      if (key + 1 >= head.row_offsets_size()) continue;
      visit(query, key, e < head.weights_size() ? head.weights(e) : 1.0f / static_cast<float>(end - start));
    }
  }
}

// For every cell, the pairs that the model allows.
std::vector<double> CountPairs(int positions, bool causal, int rows, int columns) {
  std::vector<double> pairs(static_cast<size_t>(rows) * columns);
  for (int query = 0; query < positions; ++query) {
    double* row = &pairs[static_cast<size_t>(CellOf(query, positions, rows)) * columns];
    const int keys = causal ? query + 1 : positions;
    for (int column = 0, start = 0; column < columns && start < keys; ++column) {
      const int end = CeilDivide(int64_t{column + 1} * positions, columns);
      row[column] += std::min(end, keys) - start;
      start = end;
    }
  }
  return pairs;
}

std::vector<float> Weights(const GraphHead& head, int positions) {
  std::vector<float> cells(static_cast<size_t>(positions) * positions);
  ForEachEdge(head, [&](int query, int key, float weight) {
    cells[static_cast<size_t>(query) * positions + key] = std::max(weight, 1e-6f);  // an edge shows, however light
  });
  return cells;
}

// Attention on its way down from the tokens that the answer is read from, by position.
struct Flow {
  std::vector<double> all;
  std::vector<double> still;  // what has not gone along any edge
};

// One layer downwards: half of what is at a query stays and half goes to its keys, an equal part by every head; a head
// without an edge there leaves its part where it is.
void PassDown(std::span<const GraphHead* const> heads, Flow& flow) {
  const size_t positions = flow.all.size();
  const double part = 0.5 / static_cast<double>(heads.size());
  std::vector<double> stays(positions, 0.5), below(positions);
  for (const GraphHead* head : heads) {
    std::vector<double> sums(positions);
    ForEachEdge(*head, [&](int query, int, float weight) { sums[query] += weight; });
    for (size_t query = 0; query < positions; ++query) stays[query] += sums[query] > 0 ? 0.0 : part;
    ForEachEdge(*head, [&](int query, int key, float weight) {
      if (sums[query] > 0) below[key] += part * flow.all[query] * weight / sums[query];
    });
  }
  for (size_t p = 0; p < positions; ++p) {
    flow.all[p] = below[p] + stays[p] * flow.all[p];
    flow.still[p] *= stays[p];
  }
}

// Attention rollout, Abnar and Zuidema 2020, without what never goes along an edge.
std::vector<double> RollOut(const SequenceView& view) {
  std::vector<double> reader(static_cast<size_t>(view.positions), view.causal || view.has_cls ? 0.0 : 1.0);
  int last = 0;  // query with an edge
  for (const GraphHead* head : view.graph) {
    ForEachEdge(*head, [&](int query, int, float) { last = std::max(last, query); });
  }
  if (view.causal || view.has_cls) reader[view.causal ? last : 0] = 1.0;
  Flow flow{reader, reader};
  for (int l = view.layers - 1; l >= 0; --l) {
    PassDown(std::span(view.graph).subspan(static_cast<size_t>(l) * view.heads, view.heads), flow);
  }
  for (size_t p = 0; p < reader.size(); ++p) flow.all[p] = std::max(0.0, flow.all[p] - flow.still[p]);
  return flow.all;
}

std::string KeysMeasure(const SequenceView& view) {
  if (view.graph.empty())
    return "Share of all edges that go to the key, over all layers and heads. In brackets: its position, or how often "
           "it "
           "occurs.";
  const char* reader = view.causal ? "the last token" : view.has_cls ? "[CLS]" : "all tokens";
  return absl::StrCat(
      "Share of the attention of ", reader,
      ", followed down through all layers (attention rollout: the heads' mean, half of each layer "
      "passed on; only what went along an edge). In brackets: the key's position, or how often it occurs.");
}

double RoundUp(double largest) {
  for (double step : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8}) {
    if (largest <= step) return step;
  }
  return 1.0;
}

SequencePicture MakePicture(const SequenceView& view, double samples) {
  SequencePicture picture{.title = view.title,
                          .positions = view.positions,
                          .layers = view.layers,
                          .heads = view.heads,
                          .keys = RankKeys(view),
                          .keys_measure = KeysMeasure(view)};
  const bool graph = !view.graph.empty();
  const int most = std::clamp(kMaxGridCells / view.heads, 48, kMaxCells);
  picture.bin = view.positions <= most ? 1 : CeilDivide(view.positions, std::min(most, kMaxBinnedCells));
  picture.columns = CeilDivide(view.positions, picture.bin);
  picture.rows = graph ? picture.columns : 1;
  if (view.positions <= kMaxNamedColumns) picture.names = view.names;
  for (size_t h = 0; h < view.edges.size(); ++h) {
    HeadPicture head{.edges = view.edges[h]->edges(),
                     .density = view.pairs > 0 ? view.edges[h]->edges() / view.pairs : -1.0};
    if (!graph) {
      head.cells =
          ShareOfKeys(std::span(view.edges).subspan(h, 1), view.positions, view.causal, samples, picture.columns);
    } else if (picture.bin == 1) {
      head.cells = Weights(*view.graph[h], view.positions);
    } else {
      head.cells =
          ShareOfPairs(std::span(view.graph).subspan(h, 1), view.positions, view.causal, picture.rows, picture.columns);
    }
    picture.pictures.push_back(std::move(head));
  }
  if (picture.keys.size() > kMaxKeys) picture.keys.resize(kMaxKeys);
  return picture;
}

Spread MakeSpread(const v1::Prediction& prediction) {
  Spread spread;
  const int id = prediction.label_id();
  for (const v1::SampleOutput& sample : prediction.sample_outputs()) {
    if (prediction.tokens_size() > 0) break;  // no one label
    spread.probability = sample.values_size() == 0;
    if (spread.probability && id >= sample.probabilities_size()) break;
    spread.values.push_back(spread.probability ? sample.probabilities(id) : sample.values(0));
  }
  if (spread.values.size() < 2) return {};
  const auto& means = spread.probability ? prediction.probabilities() : prediction.values();
  const int index = spread.probability ? id : 0;
  spread.mean = index < means.size() ? means[index] : 0.0;
  spread.deviation = index < prediction.stddev_size() ? prediction.stddev(index) : 0.0;
  spread.title = spread.probability
                     ? absl::StrCat("Probability of \"", VisibleToken(prediction.label()), "\" in each sample")
                     : "First value in each sample";
  return spread;
}

std::string Answer(const v1::Prediction& prediction) {
  if (prediction.tokens_size() > 0) return "";
  if (prediction.values_size() > 0) return absl::StrFormat("value %.4f; ", prediction.values(0));
  const int id = prediction.label_id();
  if (id >= prediction.probabilities_size()) return "";
  return absl::StrFormat("%s \"%s\" with probability %.4f; ", prediction.perplexity() > 0 ? "next token" : "prediction",
                         VisibleToken(prediction.label()), prediction.probabilities(id));
}

}  // namespace

std::vector<float> ShareOfPairs(std::span<const GraphHead* const> heads, int positions, bool causal, int rows,
                                int columns) {
  const std::vector<double> pairs = CountPairs(positions, causal, rows, columns);
  std::vector<double> edges(pairs.size());
  for (const GraphHead* head : heads) {
    ForEachEdge(*head, [&](int query, int key, float) {
      ++edges[static_cast<size_t>(CellOf(query, positions, rows)) * columns + CellOf(key, positions, columns)];
    });
  }
  std::vector<float> shares(pairs.size());
  for (size_t c = 0; c < pairs.size(); ++c) {
    if (edges[c] > 0) {
      shares[c] =
          static_cast<float>(std::min(1.0, edges[c] / (std::max(pairs[c], 1.0) * static_cast<double>(heads.size()))));
    }
  }
  return shares;
}

std::vector<float> ShareOfKeys(std::span<const v1::EdgeReport::HeadEdges* const> heads, int positions, bool causal,
                               double samples, int columns) {
  std::vector<double> edges(static_cast<size_t>(columns)), pairs(static_cast<size_t>(columns));
  for (int key = 0; key < positions; ++key) {
    const size_t column = static_cast<size_t>(CellOf(key, positions, columns));
    pairs[column] += causal ? positions - key : positions;
    for (const v1::EdgeReport::HeadEdges* head : heads) edges[column] += head->key_degrees(key);
  }
  std::vector<float> shares(edges.size());
  for (size_t c = 0; c < edges.size(); ++c) {
    shares[c] = static_cast<float>(std::min(1.0, edges[c] / (pairs[c] * samples * static_cast<double>(heads.size()))));
  }
  return shares;
}

std::vector<KeyShare> RankKeys(const SequenceView& view) {
  std::vector<double> mass(static_cast<size_t>(view.positions));
  if (!view.graph.empty()) {
    mass = RollOut(view);
  } else {
    for (const v1::EdgeReport::HeadEdges* head : view.edges) {
      for (int key = 0; key < view.positions; ++key) mass[key] += head->key_degrees(key);
    }
  }
  struct Group {
    int first = 0, count = 0;
    double mass = 0;
  };
  std::map<std::string, Group> groups;
  for (int key = 0; key < view.positions; ++key) {
    Group& group = groups[view.words ? view.names[key] : absl::StrCat(key)];
    if (group.count++ == 0) group.first = key;
    group.mass += mass[key];
  }
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  std::vector<Group> sorted;
  for (const auto& [name, group] : groups) {
    if (group.mass > 1e-12 * total) sorted.push_back(group);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Group& a, const Group& b) { return a.mass != b.mass ? a.mass > b.mass : a.first < b.first; });
  std::vector<KeyShare> keys;
  for (const Group& group : sorted) {
    const std::string& name = view.names[group.first];
    const std::string where = absl::StrCat("position ", group.first);
    keys.push_back({group.count > 1 ? absl::StrCat(name, " (", group.count, " \u00d7)")
                    : name == where ? name
                                    : absl::StrCat(name, " (", group.first, ")"),
                    group.mass / total});
  }
  return keys;
}

absl::StatusOr<Plot> LayOutPlot(const PlotSource& source) {
  absl::StatusOr<std::vector<SequenceView>> views = ViewSequences(source);
  if (!views.ok()) return views.status();
  const v1::Prediction& prediction = source.response.predictions(0);
  const v1::EdgeReport& report = prediction.edges();
  Plot plot;
  plot.title = absl::StrCat("Edges in ", source.response.model(), ", version ", source.response.version());
  plot.subtitle = absl::StrCat(Answer(prediction), "density ", Percent(report.density()), "; ",
                               Plural(prediction.samples(), "sample"), "; seed ", source.response.seed());
  const double samples = std::max<uint32_t>(prediction.samples(), 1);
  double largest = 0.0;
  for (const SequenceView& view : *views) {
    if (view.edges.size() > kMaxPlotHeads) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has ", view.edges.size(), " heads; a plot shows ", kMaxPlotHeads));
    }
    plot.sequences.push_back(MakePicture(view, samples));
    for (const HeadPicture& head : plot.sequences.back().pictures) {
      for (float cell : head.cells) largest = std::max<double>(largest, cell);
    }
  }
  const bool graph = source.graph != nullptr;
  const int bin = std::max(plot.sequences.front().bin, plot.sequences.back().bin);
  plot.weights = graph && bin == 1;
  plot.largest = plot.weights ? 1.0 : RoundUp(largest);
  if (!graph) {
    plot.colour_title = bin == 1 ? "Share of a key's pairs that have an edge"
                                 : absl::StrCat("Share of the pairs of ", bin, " neighbouring keys that have an edge");
    plot.edges_note = absl::StrCat("Only keys are shown, over all queries: ", source.without_graph, ".");
  } else {
    plot.colour_title =
        plot.weights ? "Attention weight of the edge"
                     : absl::StrCat("Share of the pairs in a cell of ", bin, " \u00d7 ", bin, " that have an edge");
    plot.edges_note = "Query by key: a row is a query, a column a key; white: no edge.";
    if (prediction.samples() > 1)
      absl::StrAppend(&plot.edges_note, " The edges, and the keys that decide, are those of the first sample.");
  }
  plot.budget = {.edges = report.edges(),
                 .largest = report.max_sample_edges(),
                 .cap = report.budget(),
                 .pairs = report.pairs(),
                 .capped = report.capped()};
  plot.spread = MakeSpread(prediction);
  plot.density_note = absl::StrCat(
      "Every density is edges / pairs, mean over samples. Pairs are those that the server counts: of each head, every ",
      source.model.causal() ? "query with itself and with the keys before it (causal)" : "query with every key");
  if (views->front().pairs == 0) {
    plot.density_note += ". Heads have edges instead: the answer does not tell how many pairs pads leave out of each.";
  } else {
    absl::StrAppend(
        &plot.density_note,
        views->size() == 2 ? "" : absl::StrCat("; ", WithCommas(std::llround(views->front().pairs)), " a head"), ".");
  }
  return plot;
}

}  // namespace edgewise::cli
