// The contents of a plot, without any drawing: a picture of every head, the keys that decide, the budget and the
// samples.
//
// With the graph a head's picture is query by key; without, it is one row that has each key's share of its pairs.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_
#define EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/plot_source.h"

namespace edgewise::cli {

inline constexpr int kMaxCells = 256;  // along a side of a head's picture: more positions are binned
inline constexpr int kMaxPlotHeads = 1024;
inline constexpr size_t kMaxKeys = 10;

struct HeadPicture {
  double edges = 0;          // mean over samples
  double density = 0;        // edges / pairs of this head; -1 where the answer does not tell the pairs of its sequence
  std::vector<float> cells;  // rows * columns, row-major, in [0, 1]; 0: no edge
};

struct KeyShare {
  std::string name;  // "film (3)": at position 3; "the (4 ×)": at four
  double share = 0;  // of all keys' 1
};

struct SequencePicture {
  std::string title;               // "" where there is only one
  std::vector<std::string> names;  // of the tokens, where each has a column of its own; otherwise empty
  int positions = 0;
  int layers = 0;
  int heads = 0;  // of a layer
  int rows = 0;
  int columns = 0;
  int bin = 1;                        // positions a column
  std::vector<HeadPicture> pictures;  // layers * heads
  std::vector<KeyShare> keys;         // the first kMaxKeys, by falling share
  std::string keys_measure;           // what their share is of
};

struct BudgetBar {
  double edges = 0;      // mean per sample
  uint64_t largest = 0;  // of any sample
  uint64_t cap = 0;      // 0: none
  uint64_t pairs = 0;
  bool capped = false;
};

// Each sample's value of the leading label (of the first value of a regression). Empty with one sample.
struct Spread {
  std::string title;
  bool probability = true;
  std::vector<double> values;
  double mean = 0;
  double deviation = 0;  // unbiased
};

struct Plot {
  std::string title;
  std::string subtitle;
  std::string edges_note;    // which edges are shown, or why none are
  std::string colour_title;  // what a cell's colour means
  bool weights = false;      // cells are softmax weights; otherwise shares of pairs
  double largest = 1;        // cell: top of the colour scale, rounded up
  std::vector<SequencePicture> sequences;
  BudgetBar budget;
  Spread spread;
  std::string density_note;  // what every density of the plot divides by
};

// The share of the pairs in each of rows x columns cells that have an edge, over all given heads together. The sides
// are cut as evenly as they can be. Pairs are those that the model allows: of a causal one, keys up to the query.
std::vector<float> ShareOfPairs(std::span<const v1::Graph::Head* const> heads, int positions, bool causal, int rows,
                                int columns);
// The same of single keys, from the key degrees of `samples` samples.
std::vector<float> ShareOfKeys(std::span<const v1::EdgeReport::HeadEdges* const> heads, int positions, bool causal,
                               double samples, int columns);

// By falling share, equal words together. With the graph by attention rollout (mean over heads, half of every layer
// passed on as it is; paths without any edge are left out) from the token that the answer is read from; without it by
// edges.
std::vector<KeyShare> RankKeys(const SequenceView& view);

// InvalidArgument where there is nothing to draw.
absl::StatusOr<Plot> LayOutPlot(const PlotSource& source);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_LAYOUT_H_
