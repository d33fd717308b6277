#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/plot_canvas.h"
#include "client/cli/plot_show.h"

namespace edgewise::cli {
namespace {

constexpr double kMargin = 28;
constexpr double kGap = 14;        // between heads
constexpr double kColumnGap = 44;  // between the heads and the panels
constexpr double kPanelWidth = 300;
constexpr double kLayerRoom = 22;     // "layer 0", turned
constexpr double kHeadTitle = 21;     // "head 0" and its density
constexpr double kWordRoom = 110;     // longest token at an axis
constexpr double kWordCell = 12;      // least cell whose axes can have words
constexpr double kMainWidth = 800;    // what the heads of a layer share
constexpr double kWidestMain = 1120;  // the same, for the sake of words
constexpr double kLeastHead = 108;    // one picture's width
constexpr double kLargestCell = 36;
constexpr double kStripHeight = 48;  // of a picture of keys only
constexpr double kScaleWidth = 200;

const TextStyle kSmall = {.size = 10.5, .colour = kGrey};
const TextStyle kHeading = {.size = 13, .bold = true};

// White to dark blue, monotone in lightness: the same order for every kind of colour vision, and in grey.
Colour Ramp(double value) {
  static constexpr Colour kStops[] = {{0.969, 0.984, 1.000},
                                      {0.776, 0.859, 0.937},
                                      {0.420, 0.682, 0.839},
                                      {0.129, 0.443, 0.710},
                                      {0.031, 0.188, 0.420}};
  constexpr int kLast = static_cast<int>(std::size(kStops)) - 1;
  const double at = std::clamp(value, 0.0, 1.0) * kLast;
  const int low = std::min(static_cast<int>(at), kLast - 1);
  const double part = at - low;
  const Colour &a = kStops[low], &b = kStops[low + 1];
  return {a.red + part * (b.red - a.red), a.green + part * (b.green - a.green), a.blue + part * (b.blue - a.blue)};
}

// The root lifts small values; the offset keeps the faintest edge off the white ground.
Colour CellColour(double value, double largest) { return Ramp(0.2 + 0.8 * std::sqrt(value / largest)); }

double DrawScale(Canvas& canvas, const Plot& plot, double x, double y) {
  canvas.Text(x, y, plot.colour_title);
  x += canvas.TextWidth(plot.colour_title) + 16;
  canvas.Fill(x, y - 7, 13, 13, {1, 1, 1});
  canvas.Frame(x, y - 7, 13, 13);
  canvas.Text(x + 6.5, y + 15, "none", {.size = 10, .anchor = 0.5, .colour = kGrey});
  x += 40;
  canvas.Cells(x, y - 7, 1, static_cast<int>(kScaleWidth), {1, 13}, [&](int, int column, Colour& colour) {
    const double root = column / (kScaleWidth - 1);
    colour = CellColour(root * root, 1);
    return true;
  });
  canvas.Frame(x, y - 7, kScaleWidth, 13);
  for (double root : {0.0, 0.5, 1.0}) {
    const double value = root * root * plot.largest;
    canvas.Text(x + root * kScaleWidth, y + 15,
                root == 0      ? ">0"
                : plot.weights ? absl::StrFormat("%g", value)
                               : absl::StrFormat("%g %%", 100 * value),
                {.size = 10, .anchor = 0.5, .colour = kGrey});
  }
  return y + 26;
}

// The places of a sequence's heads on the page.
struct Grid {
  bool words = false;  // axes have words; otherwise numbers
  Size cell;
  double left = 0;   // room for layer names and the queries' axis
  double below = 0;  // room for the keys' axis
  Size head;         // of one picture
  Size all;
};

Grid MeasureGrid(Canvas& canvas, const SequencePicture& picture) {
  Grid grid;
  double cell = std::floor((kMainWidth / picture.heads - kGap) / picture.columns);
  if (!picture.names.empty() && picture.heads * picture.columns * kWordCell <= kWidestMain) {
    cell = std::max(cell, kWordCell);
  }
  cell = std::clamp(std::max(cell, std::round(kLeastHead / picture.columns)), 1.0, kLargestCell);
  grid.words = !picture.names.empty() && cell >= kWordCell;
  double longest = 0;
  for (const std::string& name : picture.names) longest = std::max(longest, canvas.TextWidth(name));
  longest = grid.words ? std::min(longest, kWordRoom) + 8 : 0;
  grid.cell = {cell, picture.rows == 1 ? kStripHeight : cell};
  grid.left = kLayerRoom + (grid.words ? longest : 34);
  grid.below = grid.words ? longest : 20;
  grid.head = {std::max(grid.cell.width * picture.columns, kLeastHead), grid.cell.height * picture.rows};
  grid.all = {grid.left + picture.heads * (grid.head.width + kGap) - kGap,
              picture.layers * (kHeadTitle + grid.head.height + kGap) + grid.below};
  return grid;
}

// The numbers or words of one axis. `keys`: below, otherwise to the left of (x, y).
void DrawAxis(Canvas& canvas, const SequencePicture& picture, const Grid& grid, bool keys, double x, double y) {
  const double cell = grid.cell.width;
  for (size_t i = 0; grid.words && i < picture.names.size(); ++i) {
    const double middle = (static_cast<double>(i) + 0.5) * cell;
    if (keys) {
      canvas.TurnedText(x + middle, y + 6, picture.names[i], {.anchor = 1}, kWordRoom);
    } else {
      canvas.Text(x - 8, y + middle, picture.names[i], {.anchor = 1}, kWordRoom);
    }
  }
  if (grid.words) return;
  int step = 1;
  for (int decade = 1; step * cell / picture.bin < 40; decade *= 10) {
    for (int nice : {1, 2, 5, 10}) {
      if (step * cell / picture.bin < 40) step = nice * decade;
    }
  }
  for (int position = 0; position < picture.positions; position += step) {
    const double at = (static_cast<double>(position) * picture.columns / picture.positions + 0.5) * cell;
    const TextStyle style = {.size = 10, .anchor = keys ? 0.5 : 1, .colour = kGrey};
    canvas.Text(keys ? x + at : x - 7, keys ? y + 12 : y + at, absl::StrCat(position), style);
    canvas.Fill(keys ? x + at - 0.5 : x - 5, keys ? y + 1 : y + at - 0.5, keys ? 1 : 4, keys ? 4 : 1, kGrey);
  }
}

void DrawHeads(Canvas& canvas, const SequencePicture& picture, const Grid& grid, double largest, double x, double y) {
  for (int l = 0; l < picture.layers; ++l) {
    const double top = y + kHeadTitle;
    canvas.TurnedText(x + 8, top + grid.head.height / 2, absl::StrCat("layer ", l), {.anchor = 0.5, .bold = true});
    if (picture.rows > 1) DrawAxis(canvas, picture, grid, false, x + grid.left, top);
    for (int h = 0; h < picture.heads; ++h) {
      const HeadPicture& head = picture.pictures[static_cast<size_t>(l) * picture.heads + h];
      const double left = x + grid.left + h * (grid.head.width + kGap);
      canvas.Text(left, y + 10, absl::StrCat("head ", h), {.bold = true});
      canvas.Text(left + grid.head.width, y + 10,
                  head.density < 0 ? absl::StrCat(MeanWithCommas(head.edges), " edges") : Percent(head.density),
                  {.anchor = 1});
      canvas.Cells(left, top, picture.rows, picture.columns, grid.cell, [&](int row, int column, Colour& colour) {
        const float value = head.cells[static_cast<size_t>(row) * picture.columns + column];
        if (value > 0) colour = CellColour(value, largest);
        return value > 0;
      });
      canvas.Frame(left, top, grid.cell.width * picture.columns, grid.head.height);
      if (l + 1 == picture.layers) DrawAxis(canvas, picture, grid, true, left, top + grid.head.height);
    }
    y = top + grid.head.height + kGap;
  }
}

double DrawKeys(Canvas& canvas, const SequencePicture& picture, bool pair, double x, double y) {
  const std::string whose = !pair ? "" : absl::StrCat(" (", absl::AsciiStrToLower(picture.title), ")");
  canvas.Text(x, y, absl::StrCat(picture.rows > 1 ? "The keys that decide" : "The keys with the most edges", whose),
              kHeading, kPanelWidth);
  y = canvas.Paragraph(x, y + 20, kPanelWidth, picture.keys_measure, kSmall) + 8;
  constexpr double kNameRoom = 124, kNumberRoom = 50, kRow = 19;
  const double room = kPanelWidth - kNameRoom - kNumberRoom - 10;
  for (const KeyShare& key : picture.keys) {
    canvas.Text(x + kNameRoom, y, key.name, {.anchor = 1}, kNameRoom);
    canvas.Fill(x + kNameRoom + 10, y - 6, std::max(1.0, room * key.share / picture.keys[0].share), 12, kBlue);
    canvas.Text(x + kPanelWidth, y, absl::StrFormat("%.1f %%", 100 * key.share), {.anchor = 1});
    y += kRow;
  }
  return y + 20;
}

double DrawBudget(Canvas& canvas, const BudgetBar& budget, double x, double y) {
  canvas.Text(x, y, "Budget", kHeading);
  y += 20;
  const bool cap = budget.cap > 0;
  const double used = std::max(budget.edges, static_cast<double>(budget.largest));
  const double whole = cap ? std::max(static_cast<double>(budget.cap), used) / 0.85
                           : std::max<double>(static_cast<double>(budget.pairs), 1);
  canvas.Fill(x, y, kPanelWidth, 16, kPale);
  canvas.Fill(x, y, std::max(1.0, kPanelWidth * budget.edges / whole), 16, kBlue);
  if (cap) canvas.Fill(x + kPanelWidth * static_cast<double>(budget.cap) / whole - 1, y - 4, 3, 24, kOrange);
  y += 32;
  const double pairs = std::max<double>(static_cast<double>(budget.pairs), 1);
  canvas.Text(x, y,
              absl::StrCat(MeanWithCommas(budget.edges), " of ", WithCommas(budget.pairs), " pairs used, ",
                           Percent(budget.edges / pairs)),
              {.colour = kBlue}, kPanelWidth);
  y += 17;
  canvas.Text(
      x, y,
      !cap ? "no cap: the whole bar is all pairs"
           : absl::StrCat("cap ", Plural(budget.cap, "edge"), ", ", Percent(static_cast<double>(budget.cap) / pairs),
                          budget.capped ? ": edges dropped" : ": none dropped"),
      {.colour = cap ? kOrange : kGrey}, kPanelWidth);
  y += 17;
  if (std::abs(static_cast<double>(budget.largest) - budget.edges) >= 0.05) {
    canvas.Text(x, y, absl::StrCat("most expensive sample ", WithCommas(budget.largest)), kSmall);
    y += 17;
  }
  return y + 20;
}

double DrawSpread(Canvas& canvas, const Spread& spread, double x, double y) {
  canvas.Text(x, y, spread.title, kHeading, kPanelWidth);
  y += 18;
  canvas.Text(x, y, absl::StrFormat("mean %.4f (line), standard deviation %.4f (band)", spread.mean, spread.deviation),
              kSmall);
  y += 16;
  const auto [least, most] = std::minmax_element(spread.values.begin(), spread.values.end());
  // Probabilities stand on the whole of [0, 1], so that small spreads look small; values on what they span.
  double low = 0, high = 1;
  if (!spread.probability) {
    const double middle = (*least + *most) / 2, half = std::max({*most - *least, 1e-3 * std::abs(middle), 1e-6});
    low = middle - half;
    high = middle + half;
  }
  auto place = [&](double value) { return x + 5 + (kPanelWidth - 10) * (value - low) / (high - low); };
  // Equal values are piled up.
  constexpr int kBins = 48;
  std::vector<int> piles(kBins);
  std::vector<std::pair<int, int>> dots;
  int highest = 1;
  for (double value : spread.values) {
    const int bin = std::clamp(static_cast<int>((value - low) / (high - low) * kBins), 0, kBins - 1);
    dots.emplace_back(bin, piles[bin]++);
    highest = std::max(highest, piles[bin]);
  }
  const double pitch = std::min(6.0, 90.0 / highest);
  const double floor = y + std::max(24.0, highest * pitch) + 4;
  canvas.Fill(
      place(std::max(low, spread.mean - spread.deviation)), y,
      place(std::min(high, spread.mean + spread.deviation)) - place(std::max(low, spread.mean - spread.deviation)),
      floor - y, kPale);
  canvas.Fill(place(spread.mean) - 1, y, 2, floor - y, kOrange);
  for (const auto& [bin, rank] : dots) {
    canvas.Dot(place(low + (bin + 0.5) / kBins * (high - low)), floor - (rank + 0.5) * pitch,
               std::min(2.6, 0.45 * pitch), kBlue);
  }
  canvas.Fill(x, floor, kPanelWidth, 1, kGrey);
  for (double part : {0.0, 0.5, 1.0}) {
    canvas.Fill(place(low + part * (high - low)) - 0.5, floor, 1, 4, kGrey);
    canvas.Text(place(low + part * (high - low)), floor + 12, absl::StrFormat("%.3g", low + part * (high - low)),
                {.size = 10, .anchor = part, .colour = kGrey});
  }
  return floor + 40;
}

Size DrawAll(Canvas& canvas, const Plot& plot) {
  double main_width = 0;
  std::vector<Grid> grids;
  for (const SequencePicture& picture : plot.sequences) {
    grids.push_back(MeasureGrid(canvas, picture));
    main_width = std::max(main_width, grids.back().all.width);
  }
  main_width = std::max(main_width, 460.0);
  const double side = kMargin + main_width + kColumnGap;
  const double width = side + kPanelWidth + kMargin;
  const double text_width = width - 2 * kMargin;
  canvas.Text(kMargin, 34, plot.title, {.size = 19, .bold = true}, text_width);
  double y = canvas.Paragraph(kMargin, 62, text_width, plot.subtitle, {.size = 12.5});
  const double top =
      canvas.Paragraph(kMargin, y + 2, text_width, plot.edges_note, {.size = 12.5, .colour = kGrey}) + 20;
  y = DrawScale(canvas, plot, kMargin, top) + 14;
  for (size_t s = 0; s < plot.sequences.size(); ++s) {
    const SequencePicture& picture = plot.sequences[s];
    if (!picture.title.empty()) {
      canvas.Text(kMargin, y, picture.title, kHeading);
      y += 22;
    }
    DrawHeads(canvas, picture, grids[s], plot.largest, kMargin, y);
    y += grids[s].all.height + 16;
  }
  double right = top;
  const bool pair = plot.sequences.size() == 2;
  for (const SequencePicture& picture : plot.sequences) right = DrawKeys(canvas, picture, pair, side, right);
  right = DrawBudget(canvas, plot.budget, side, right);
  if (!plot.spread.values.empty()) right = DrawSpread(canvas, plot.spread, side, right);
  y = canvas.Paragraph(kMargin, std::max(y, right) + 8, text_width, plot.density_note, kSmall);
  return {width, y + kMargin - 10};
}

}  // namespace

absl::Status CheckPictureName(const std::string& path, const char* hint) {
  if (absl::EndsWithIgnoreCase(path, ".svg") || absl::EndsWithIgnoreCase(path, ".png")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--plot is \"", path, "\"; expected a name that ends in .png or .svg, ", hint));
}

absl::Status DrawPlot(const Plot& plot, const std::string& path) {
  return DrawPage(path, [&plot](Canvas& canvas) { return DrawAll(canvas, plot); });
}

}  // namespace edgewise::cli
