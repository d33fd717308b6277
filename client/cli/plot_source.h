// One sequence of an answer, as the plots need it: its heads, its tokens, its pairs.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_SOURCE_H_
#define EDGEWISE_CLIENT_CLI_PLOT_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// All that a plot is made of.
struct PlotSource {
  const v1::Input& input;
  const v1::PredictResponse& response;  // of one input, with key degrees; of several samples, with each sample's output
  const v1::ModelInfo& model;           // all unset where the server did not tell
  const v1::Graph* graph = nullptr;     // of the first sample
  std::string without_graph;            // why there is none
};

// One sequence; of a text in windows, the last window.
struct SequenceView {
  std::string title;               // "" where the input has one sequence and one window
  std::vector<std::string> names;  // of the tokens, by position; never empty
  bool words = false;              // equal names mean equal tokens: words and token ids
  int positions = 0;
  int layers = 0;
  int heads = 0;     // of a layer
  double pairs = 0;  // of a head, as the server counts them; 0: the answer does not tell
  bool causal = false;
  bool has_cls = false;
  std::vector<const v1::EdgeReport::HeadEdges*> edges;  // layers * heads
  std::vector<const v1::Graph::Head*> graph;            // the same, or empty: no graph
};

// One view, or two for a pair. InvalidArgument where there is nothing to plot.
absl::StatusOr<std::vector<SequenceView>> ViewSequences(const PlotSource& source);

// "␣", "↵" or two hexadecimal digits for a character that would not show; other tokens as they are.
std::string VisibleToken(const std::string& token);

// The tokens of a sequence as the model's tokenizer sees them ("byte", "char", "word"; ids for token ids), for
// `positions` positions: a CLS token in front, dropped tokens and earlier windows are allowed for. Where the tokens do
// not come out even, and for rows of features: "position 3".
std::vector<std::string> TokenNames(const v1::Sequence& sequence, const v1::ModelInfo& model, int positions,
                                    int truncated);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_SOURCE_H_
