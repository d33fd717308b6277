#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/plot_show.h"

namespace edgewise::cli {
namespace {

constexpr int kColumns = 64;  // a terminal's columns are half as wide as its rows are high
constexpr size_t kLabelWidth = 13;
constexpr size_t kKeys = 3;  // named below the picture
constexpr std::array<const char*, 5> kShades = {" ", "░", "▒", "▓", "█"};
constexpr std::array<const char*, 9> kBars = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// Level 0 is nothing at all.
int Level(double share, double largest, size_t levels) {
  const int top = static_cast<int>(levels) - 1;
  return share <= 0 ? 0 : std::clamp(static_cast<int>(std::ceil(top * share / largest - 1e-6)), 1, top);
}

class Painter {
 public:
  explicit Painter(bool colour) : colour_(colour) {}
  // A line of the picture between two bars.
  void Line(const std::string& label, const std::string& cells) {
    absl::StrAppend(&text_, PadLeft(label, kLabelWidth), " │", colour_ ? "\x1b[36m" : "", cells,
                    colour_ ? "\x1b[0m" : "", "│\n");
  }
  void Say(const std::string& line) { absl::StrAppend(&text_, line, "\n"); }
  std::string text() const { return text_; }

 private:
  bool colour_;
  std::string text_;
};

// Cut to the label's width, by characters.
std::string Label(const std::string& name) {
  std::string cut;
  size_t columns = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(name[i]) & 0xc0) != 0x80;
    if (starts && ++columns == kLabelWidth && PadRight(name.substr(i + 1), 1) != " ") return cut + "…";
    cut += name[i];
  }
  return cut;
}

std::string Axis(int positions, int columns) {
  const std::string last = absl::StrCat(positions - 1);
  return absl::StrCat(std::string(kLabelWidth + 2, ' '),
                      PadRight("0", std::max<int>(1, columns - static_cast<int>(last.size()))), last);
}

void PaintGraph(const SequenceView& view, Painter& painter) {
  const int wide = view.positions <= kColumns / 2 ? 2 : 1;  // characters a column
  const int columns = std::min(view.positions, kColumns);
  const int rows = wide == 2 ? columns : (columns + 1) / 2;
  const std::vector<float> shares = ShareOfPairs(view.graph, view.positions, view.causal, rows, columns);
  const double largest = *std::max_element(shares.begin(), shares.end());
  for (int row = 0; row < rows; ++row) {
    std::string cells;
    for (int column = 0; column < columns; ++column) {
      const int level = Level(shares[static_cast<size_t>(row) * columns + column], largest, kShades.size());
      for (int c = 0; c < wide; ++c) cells += kShades[level];
    }
    const int position = static_cast<int>((static_cast<int64_t>(row) * view.positions + rows - 1) / rows);
    const bool named = wide == 2 || row % 8 == 0;
    painter.Line(!named ? "" : wide == 2 ? Label(view.names[position]) : absl::StrCat("query ", position), cells);
  }
  painter.Say(Axis(view.positions, columns * wide) + " key");
  painter.Say(absl::StrFormat("Shade: share of a cell's pairs with an edge, over all %d heads:", view.graph.size()));
  std::string scale;
  for (size_t level = 1; level < kShades.size(); ++level) {
    absl::StrAppendFormat(&scale, "  %s to %.3g %%", kShades[level], 25.0 * level * largest);
  }
  painter.Say(scale);
}

void PaintKeys(const SequenceView& view, double samples, Painter& painter) {
  const int columns = std::min(view.positions, kColumns);
  const std::vector<float> shares = ShareOfKeys(view.edges, view.positions, view.causal, samples, columns);
  const double largest = *std::max_element(shares.begin(), shares.end());
  std::string cells;
  for (float share : shares) cells += kBars[Level(share, largest, kBars.size())];
  painter.Line("all queries", cells);
  painter.Say(Axis(view.positions, columns) + " key");
  painter.Say(absl::StrFormat("Height: the share of a key's pairs with an edge, over all %d heads: up to %.3g %%.",
                              view.edges.size(), 100 * largest));
}

}  // namespace

absl::StatusOr<std::string> PlotText(const PlotSource& source, bool colour) {
  absl::StatusOr<std::vector<SequenceView>> views = ViewSequences(source);
  if (!views.ok()) return views.status();
  const v1::Prediction& prediction = source.response.predictions(0);
  Painter painter(colour);
  for (const SequenceView& view : *views) {
    if (!view.title.empty()) painter.Say(view.title);
    if (view.graph.empty()) {
      painter.Say(absl::StrCat("Only keys are shown, over all queries: ", source.without_graph, "."));
      PaintKeys(view, std::max<uint32_t>(prediction.samples(), 1), painter);
    } else {
      PaintGraph(view, painter);
    }
    std::string keys;
    const std::vector<KeyShare> ranked = RankKeys(view);
    for (size_t k = 0; k < std::min(kKeys, ranked.size()); ++k) {
      absl::StrAppendFormat(&keys, "%s%s %.1f %%", k == 0 ? "" : "; ", ranked[k].name, 100 * ranked[k].share);
    }
    painter.Say(absl::StrCat(view.graph.empty() ? "Most edges go to: " : "Most attention goes to: ", keys));
  }
  const v1::EdgeReport& edges = prediction.edges();
  painter.Say(absl::StrCat("Edges: ", MeanWithCommas(edges.edges()), " of ", WithCommas(edges.pairs()),
                           " pairs, density ", Percent(edges.density()),
                           prediction.samples() > 1 ? "; the picture is of the first sample" : ""));
  return painter.text();
}

}  // namespace edgewise::cli
