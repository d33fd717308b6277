#include "client/cli/plot_layout.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

constexpr int kHeatWidth = 1200;         // pixels, about
constexpr int kMaxLabelledTokens = 100;  // above, a column has no room for text
constexpr int kMaxColumns = 600;
constexpr int kMaxMatrixCells = 256;
constexpr int kMaxMatrices = 256;

int CeilDivide(int a, int b) { return (a + b - 1) / b; }

std::vector<std::string> SplitWords(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (char c : text + " ") {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

// "␣" for what would not show.
std::string Visible(const std::string& token) {
  if (token.size() != 1) return token;
  const unsigned char c = static_cast<unsigned char>(token[0]);
  if (c == ' ') return "\u2423";
  if (c > 0x20 && c < 0x7f) return token;
  return absl::StrFormat("%02x", c);
}

std::vector<std::string> Split(const v1::Sequence& sequence, const std::string& tokenizer) {
  std::vector<std::string> tokens;
  if (sequence.has_token_ids()) {
    for (int32_t id : sequence.token_ids().values()) tokens.push_back(absl::StrCat(id));
  } else if (tokenizer == "word") {
    tokens = SplitWords(sequence.text());
  } else if (tokenizer == "byte") {
    for (char c : sequence.text()) tokens.push_back(Visible(std::string(1, c)));
  } else if (tokenizer == "char") {
    for (char c : sequence.text()) {
      if ((static_cast<unsigned char>(c) & 0xc0) == 0x80 && !tokens.empty()) {
        tokens.back() += c;
      } else {
        tokens.emplace_back(1, c);
      }
    }
    for (std::string& token : tokens) token = Visible(token);
  }
  return tokens;
}

void SizeCells(HeatPanel& panel, int rows) {
  const int columns = CeilDivide(panel.positions, panel.bin);
  panel.cell_width = std::clamp(kHeatWidth / columns, 2, 40);
  panel.cell_height = rows <= 24 ? 24 : rows <= 64 ? 16 : rows <= 200 ? 12 : 4;
  constexpr int kNumberRoom = 36;  // pixels that a position's number takes
  const int least = CeilDivide(kNumberRoom * panel.bin, panel.cell_width);
  for (int decade = 1; panel.tick_step < least; decade *= 10) {
    for (int nice : {1, 2, 5}) {
      if (panel.tick_step < least) panel.tick_step = nice * decade;
    }
  }
}

HeatRow MakeRow(const v1::EdgeReport::HeadEdges& head, int layer, int index, int bin, double queries, double samples) {
  HeatRow row{.layer = layer, .head = index};
  double total = 0.0;
  const int positions = head.key_degrees_size();
  for (int start = 0; start < positions; start += bin) {
    const int end = std::min(start + bin, positions);
    double degrees = 0.0;
    for (int key = start; key < end; ++key) degrees += head.key_degrees(key);
    total += degrees;
    row.share.push_back(std::min(1.0, degrees / (samples * queries * (end - start))));
  }
  row.density = total / (samples * queries * queries);
  return row;
}

Matrix MakeMatrix(const v1::Graph::Head& head, int layer, int index) {
  const int positions = head.row_offsets_size() - 1;
  const int bin = CeilDivide(positions, kMaxMatrixCells);
  Matrix matrix{.layer = layer, .head = index, .size = CeilDivide(positions, bin)};
  matrix.weight.assign(static_cast<size_t>(matrix.size) * matrix.size, 0.0f);
  for (int query = 0; query < positions; ++query) {
    const uint32_t end = std::min<uint32_t>(head.row_offsets(query + 1), head.keys_size());
    for (uint32_t e = head.row_offsets(query); e < end; ++e) {
      const int key = static_cast<int>(head.keys(static_cast<int>(e)));
      if (key >= positions) continue;
      const float weight = static_cast<int>(e) < head.weights_size() ? head.weights(static_cast<int>(e)) : 1.0f;
      float& cell = matrix.weight[static_cast<size_t>(query / bin) * matrix.size + key / bin];
      cell = std::max(cell, std::max(weight, 1e-6f));  // an edge shows, however small its weight
    }
  }
  return matrix;
}

double RoundUpScale(double largest) {
  for (double step : {0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.8}) {
    if (largest <= step) return step;
  }
  return 1.0;
}

}  // namespace

std::vector<std::string> TokenLabels(const v1::Sequence& sequence, const std::string& tokenizer, int positions,
                                     int truncated) {
  std::vector<std::string> tokens = Split(sequence, tokenizer);
  const int size = static_cast<int>(tokens.size());
  if (truncated > 0 && truncated < size) {
    auto first = sequence.truncate() == v1::HEAD ? tokens.begin() : tokens.end() - truncated;
    tokens.erase(first, first + truncated);
  }
  if (static_cast<int>(tokens.size()) + 1 == positions) tokens.insert(tokens.begin(), "[CLS]");
  if (static_cast<int>(tokens.size()) != positions) tokens.clear();
  return tokens;
}

int CountQueries(uint64_t pairs, int heads, int positions) {
  if (heads <= 0 || pairs % static_cast<uint64_t>(heads) != 0) return positions;
  const uint64_t square = pairs / static_cast<uint64_t>(heads);
  const auto root = static_cast<uint64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  if (root == 0 || root * root != square || root > static_cast<uint64_t>(positions)) return positions;
  return static_cast<int>(root);
}

absl::StatusOr<Plot> LayOutPlot(const v1::Input& input, const v1::PredictResponse& response,
                                const std::string& tokenizer) {
  if (response.predictions_size() != 1) return absl::InvalidArgumentError("a plot shows one input");
  const v1::Prediction& prediction = response.predictions(0);
  const v1::EdgeReport& edges = prediction.edges();
  const int sequences = input.has_second() ? 2 : 1;
  if (edges.layers_size() == 0 || edges.layers_size() % sequences != 0 || edges.layers(0).heads_size() == 0) {
    return absl::InvalidArgumentError("the answer has no key degrees to plot");
  }
  const int layers = edges.layers_size() / sequences;
  Plot plot;
  const double samples = std::max<uint32_t>(prediction.samples(), 1);
  plot.title = absl::StrCat("Tokens attended to in ", response.model(), ", version ", response.version());
  plot.subtitle =
      absl::StrCat(prediction.label().empty() ? "" : "prediction " + prediction.label() + "; ", "density ",
                   Percent(edges.density()), "; ", Plural(prediction.samples(), "sample"), "; seed ", response.seed());
  double largest = 0.0;
  for (int s = 0; s < sequences; ++s) {
    HeatPanel panel;
    const v1::Sequence& sequence = s == 0 ? input.sequence() : input.second();
    int heads = 0;
    for (int l = 0; l < layers; ++l) heads += edges.layers(s * layers + l).heads_size();
    if (heads > kMaxHeatRows) {
      return absl::InvalidArgumentError(absl::StrCat("the model has ", heads, " heads; a plot shows ", kMaxHeatRows));
    }
    panel.positions = edges.layers(s * layers).heads(0).key_degrees_size();
    if (panel.positions == 0) return absl::InvalidArgumentError("the answer has no key degrees to plot");
    if (sequences == 2) panel.title = s == 0 ? "First sequence" : "Second sequence";
    const int queries = sequences == 2 ? panel.positions : CountQueries(edges.pairs(), heads, panel.positions);
    const int truncated = static_cast<int>(sequences == 2 ? 0 : prediction.truncated_tokens());
    if (panel.positions <= kMaxLabelledTokens) {
      panel.labels = TokenLabels(sequence, tokenizer, panel.positions, truncated);
    }
    panel.bin = CeilDivide(panel.positions, kMaxColumns);
    SizeCells(panel, heads);
    for (int l = 0; l < layers; ++l) {
      const v1::EdgeReport::LayerEdges& layer = edges.layers(s * layers + l);
      for (int h = 0; h < layer.heads_size(); ++h) {
        if (layer.heads(h).key_degrees_size() != panel.positions) {
          return absl::InvalidArgumentError("the heads' key degrees differ in length");
        }
        panel.rows.push_back(MakeRow(layer.heads(h), l, h, panel.bin, queries, samples));
        for (double share : panel.rows.back().share) largest = std::max(largest, share);
      }
    }
    plot.panels.push_back(std::move(panel));
  }
  plot.largest_share = RoundUpScale(largest);
  const v1::Graph& graph = prediction.graph();
  for (int l = 0; l < graph.layers_size(); ++l) {
    for (int h = 0; h < graph.layers(l).heads_size(); ++h) {
      const int positions = graph.layers(l).heads(h).row_offsets_size() - 1;
      if (positions < 1 || positions > kMaxMatrixPositions || plot.matrices.size() == kMaxMatrices) continue;
      Matrix matrix = MakeMatrix(graph.layers(l).heads(h), l % layers, h);
      matrix.sequence = l / layers;
      plot.matrices.push_back(std::move(matrix));
    }
  }
  return plot;
}

}  // namespace edgewise::cli
