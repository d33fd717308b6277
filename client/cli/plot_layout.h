// What a plot shows and where, without any drawing: which tokens are attended to, per layer and head.
//
// Heat map: one column per token (per bin of tokens where there are many), one row per (layer, head); the value is the
// share of the queries that attend to the token, mean over samples and over the bin. Matrices: one per (layer, head) of
// a returned graph, queries downwards, keys to the right.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_
#define EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

inline constexpr int kMaxMatrixPositions = 512;  // a graph of more is not drawn
inline constexpr int kMaxHeatRows = 2000;

struct HeatRow {
  int layer = 0;
  int head = 0;
  double density = 0;         // edges of this head / (queries * keys)
  std::vector<double> share;  // one per column, in [0, 1]
};

// One sequence; a pair has two.
struct HeatPanel {
  std::string title;  // "" unless a pair
  int positions = 0;
  int bin = 1;                      // positions per column
  std::vector<std::string> labels;  // one per column; empty: label columns by position
  std::vector<HeatRow> rows;
  int cell_width = 0;  // pixels
  int cell_height = 0;
  int tick_step = 1;  // positions between numbers, where there are no labels, so that they do not touch
};

struct Matrix {
  int sequence = 0;
  int layer = 0;
  int head = 0;
  int size = 0;               // cells per side
  std::vector<float> weight;  // size * size, row-major, the largest of each cell's softmax weights; 0: no edge
};

struct Plot {
  std::string title;
  std::string subtitle;
  double largest_share = 0;  // top of the colour scale, rounded up
  std::vector<HeatPanel> panels;
  std::vector<Matrix> matrices;
};

// The tokens of a sequence as the model's tokenizer sees them ("byte", "char", "word"; ids for token ids), for
// `positions` columns: a CLS token in front and dropped tokens are allowed for. Empty where it does not come out even.
std::vector<std::string> TokenLabels(const v1::Sequence& sequence, const std::string& tokenizer, int positions,
                                     int truncated);

// Valid queries of the one sequence that `pairs` counts over `heads` heads; `positions` where that cannot be told.
int CountQueries(uint64_t pairs, int heads, int positions);

// The prediction must carry key degrees (outputs.key_degrees); matrices appear where it carries a graph that is small
// enough. InvalidArgument where there is nothing to draw.
absl::StatusOr<Plot> LayOutPlot(const v1::Input& input, const v1::PredictResponse& response,
                                const std::string& tokenizer);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_
