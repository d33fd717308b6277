#include "client/cli/evaluate_plot.h"

#include <cairo-svg.h>
#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

constexpr double kWidth = 760, kHeight = 646;
constexpr double kLeft = 78, kRight = 36;
constexpr double kLegend = 76, kLegendStep = 20;
constexpr double kTop = 136, kPanel = 200, kGap = 58;
constexpr double kMarker = 5;

struct Colour {
  double red, green, blue;
};
constexpr Colour kInk = {0.13, 0.13, 0.13}, kGrey = {0.45, 0.45, 0.45}, kFaint = {0.88, 0.88, 0.88};
constexpr Colour kWhite = {1, 1, 1};
// Okabe and Ito: told apart with any kind of colour vision. Their markers differ too.
constexpr Colour kSeries[] = {{0.0, 0.447, 0.698}, {0.835, 0.369, 0.0},   {0.0, 0.620, 0.451},
                              {0.8, 0.475, 0.655}, {0.337, 0.706, 0.914}, {0.902, 0.624, 0.0}};

// A regular polygon, turned by a share of a corner; without corners a circle.
struct Marker {
  int corners;
  double turn = 0;
};
constexpr Marker kSeriesMarkers[] = {{0}, {3}, {4}, {5}, {3, 1.5}, {6}}, kDenseMarker = {4, 0.5};

// The settings of one number of samples, by density. Left out are caps that drop no edge,
// which change nothing, and caps that were refused for some input: their answers are to other inputs.
struct Series {
  uint32_t samples;
  std::vector<const SettingResult*> rows;
};

double Density(const SettingResult& row) { return row.Mean(row.density); }

std::vector<Series> MakeSeries(const Evaluation& evaluation) {
  std::vector<Series> all;
  for (const SettingResult& row : evaluation.rows) {
    if (row.setting.dense || row.refused > 0 || (row.setting.cap && row.capped == 0)) continue;
    if (all.empty() || all.back().samples != row.setting.samples) all.push_back({row.setting.samples, {}});
    all.back().rows.push_back(&row);
  }
  for (Series& series : all) {
    std::stable_sort(series.rows.begin(), series.rows.end(),
                     [](const SettingResult* a, const SettingResult* b) { return Density(*a) < Density(*b); });
  }
  return all;
}

// 1, 2 or 5 times a power of ten.
double NiceStep(double range, int steps) {
  const double rough = range / steps, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10.0 * power;
}

struct Axis {
  double low, high, step;
};

// From a tick to a tick, around the values; at least `range` wide, within [least, most].
Axis MakeAxis(const std::vector<double>& values, double range, double least, double most) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double margin = std::max(0.12 * (*high - *low), (range - (*high - *low)) / 2);
  const double from = std::max(least, *low - margin), to = std::min(most, *high + margin);
  const double step = NiceStep(to - from, 5);
  return {step * std::floor(from / step + 1e-9), step * std::ceil(to / step - 1e-9), step};
}

class Chart {
 public:
  Chart(cairo_t* cairo, double least_density) : cairo_(cairo), left_(std::log(least_density) - 0.25) {
    Paint(kWhite);
    cairo_paint(cairo_);
  }

  double X(double density) const {
    constexpr double kEnd = 0.12;  // beyond 100 %
    return kLeft + (kWidth - kLeft - kRight) * (std::log(density) - left_) / (kEnd - left_);
  }
  void BeginPanel(double top, const Axis& axis) {
    top_ = top;
    axis_ = axis;
  }
  double Y(double value) const { return top_ + kPanel * (axis_.high - value) / (axis_.high - axis_.low); }

  // anchor: 0 the text starts at x, 0.5 is centred, 1 ends there; y is the middle of the line. -> its width
  double Text(double x, double y, double size, const std::string& text, double anchor = 0, Colour colour = kInk,
              bool bold = false) {
    cairo_select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo_, size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, text.c_str(), &extents);
    Paint(colour);
    cairo_move_to(cairo_, x - anchor * extents.x_advance, y + 0.36 * size);
    cairo_show_text(cairo_, text.c_str());
    return extents.x_advance;
  }

  void Line(double x0, double y0, double x1, double y1, Colour colour, double width, bool dashed = false) {
    constexpr double kDashes[] = {5, 4};
    cairo_set_dash(cairo_, kDashes, dashed ? 2 : 0, 0);
    cairo_set_line_width(cairo_, width);
    Paint(colour);
    cairo_move_to(cairo_, x0, y0);
    cairo_line_to(cairo_, x1, y1);
    cairo_stroke(cairo_);
    cairo_set_dash(cairo_, kDashes, 0, 0);
  }

  void Mark(double x, double y, Marker marker, Colour colour, bool hollow = false) {
    cairo_new_path(cairo_);
    if (marker.corners == 0) cairo_arc(cairo_, x, y, kMarker, 0, 2 * std::numbers::pi);
    for (int c = 0; c < marker.corners; ++c) {
      const double angle = 2 * std::numbers::pi * (c + marker.turn) / marker.corners;
      cairo_line_to(cairo_, x + 1.25 * kMarker * std::sin(angle), y - 1.25 * kMarker * std::cos(angle));
    }
    cairo_close_path(cairo_);
    Paint(hollow ? kWhite : colour);
    cairo_fill_preserve(cairo_);
    Paint(colour);
    cairo_set_line_width(cairo_, 1.8);
    cairo_stroke(cairo_);
  }

  // The title of a panel, its grid and its numbers: `scale` times the value, and the unit.
  void Ground(const std::string& title, double scale, const std::string& unit) {
    Text(kLeft, top_ - 18, 13, title, 0, kInk, true);
    for (double value = axis_.low; value <= axis_.high + 0.5 * axis_.step; value += axis_.step) {
      Line(kLeft, Y(value), kWidth - kRight, Y(value), kFaint, 1);
      Text(kLeft - 8, Y(value), 11, absl::StrFormat("%g%s", std::round(1e6 * scale * value) / 1e6, unit), 1);
    }
    for (double power = 1e-6; power < 2; power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double density = factor * power;
        if (std::log(density) < left_ || density > 1.0 + 1e-9) continue;
        Line(X(density), top_, X(density), top_ + kPanel, kFaint, 1);
        Text(X(density), top_ + kPanel + 13, 11, absl::StrFormat("%g %%", 100 * density), 0.5);
      }
    }
  }

 private:
  void Paint(Colour colour) { cairo_set_source_rgb(cairo_, colour.red, colour.green, colour.blue); }

  cairo_t* cairo_;
  double left_;  // log of the density at the left edge
  double top_ = 0;
  Axis axis_ = {0, 1, 1};
};

Colour ColourOf(size_t series) { return kSeries[series % std::size(kSeries)]; }
Marker MarkerOf(size_t series) { return kSeriesMarkers[series % std::size(kSeriesMarkers)]; }

// Curves of `value`, dense attention as a square at 100 % and a dashed line.
template <typename Value>
void DrawCurves(Chart& chart, const Evaluation& evaluation, const std::vector<Series>& all, Value value) {
  const double dense = value(evaluation.rows[0]);
  chart.Line(kLeft, chart.Y(dense), kWidth - kRight, chart.Y(dense), kGrey, 1.4, true);
  for (size_t s = 0; s < all.size(); ++s) {
    const std::vector<const SettingResult*>& rows = all[s].rows;
    for (size_t r = 1; r < rows.size(); ++r) {
      chart.Line(chart.X(Density(*rows[r - 1])), chart.Y(value(*rows[r - 1])), chart.X(Density(*rows[r])),
                 chart.Y(value(*rows[r])), ColourOf(s), 1.8);
    }
  }
  for (size_t s = 0; s < all.size(); ++s) {
    for (const SettingResult* row : all[s].rows) {
      chart.Mark(chart.X(Density(*row)), chart.Y(value(*row)), MarkerOf(s), ColourOf(s), !row->setting.cap);
    }
  }
  chart.Mark(chart.X(1.0), chart.Y(dense), kDenseMarker, kGrey);
}

void DrawLegend(Chart& chart, const std::vector<Series>& all) {
  constexpr double kSample = 26, kSpace = 24, kWidest = 150;
  double x = kLeft, y = kLegend;
  auto entry = [&](Marker marker, Colour colour, bool line, bool dashed, bool hollow, const std::string& name) {
    if (x + kWidest > kWidth - kRight) {
      x = kLeft;
      y += kLegendStep;
    }
    if (line) chart.Line(x, y, x + kSample, y, colour, 1.8, dashed);
    chart.Mark(x + kSample / 2, y, marker, colour, hollow);
    x += kSample + 8;
    x += chart.Text(x, y, 11.5, name) + kSpace;
  };
  entry(kDenseMarker, kGrey, true, true, false, "dense attention");
  for (size_t s = 0; s < all.size(); ++s) {
    entry(MarkerOf(s), ColourOf(s), true, false, false, absl::StrCat("caps, ", Plural(all[s].samples, "sample")));
  }
  if (!all.empty()) entry(MarkerOf(0), ColourOf(0), false, false, true, "no cap");
}

void Draw(cairo_t* cairo, const Evaluation& evaluation, const std::string& data) {
  const std::vector<Series> all = MakeSeries(evaluation);
  std::vector<double> qualities, speeds = {0.0};
  double least = 1.0;
  for (const SettingResult& row : evaluation.rows) {
    if (row.refused > 0) continue;
    qualities.push_back(row.quality.Value());
    speeds.push_back(Quantile(row.speed, 0.5));
    if (Density(row) > 0) least = std::min(least, Density(row));
  }
  Chart chart(cairo, least);
  chart.Text(kLeft, 26, 16, absl::StrCat(evaluation.first.model(), ": what a budget buys"), 0, kInk, true);
  chart.Text(kLeft, 48, 11.5,
             absl::StrCat(data, ", ", Plural(evaluation.rows[0].answered, "answer"), " a point, on ",
                          evaluation.first.device()),
             0, kGrey);
  DrawLegend(chart, all);

  double top = kTop;
  const std::string measure = evaluation.rows[0].quality.Measure();
  if (!measure.empty()) {
    const bool share = measure == "accuracy";
    const double spread = *std::max_element(qualities.begin(), qualities.end());
    chart.BeginPanel(top, MakeAxis(qualities, share ? 0.1 : std::max(0.1 * spread, 1e-6), 0.0, share ? 1.0 : 1e300));
    chart.Ground(share               ? "Accuracy"
                 : measure == "loss" ? "Loss, nats per token (lower is better)"
                                     : "Mean absolute error (lower is better)",
                 share ? 100 : 1, share ? " %" : "");
    DrawCurves(chart, evaluation, all, [](const SettingResult& row) { return row.quality.Value(); });
    top += kPanel + kGap;
  }
  chart.BeginPanel(top, MakeAxis(speeds, 1.0, 0.0, 1e300));
  chart.Ground("Speed: dense compute time / compute time, median over inputs", 1, "×");
  DrawCurves(chart, evaluation, all, [](const SettingResult& row) { return Quantile(row.speed, 0.5); });
  chart.Text((kLeft + kWidth - kRight) / 2, top + kPanel + 34, 11.5,
             "Density: share of all pairs that were attended to, mean (log scale)", 0.5);
}

bool IsSvg(const std::string& path) { return absl::EndsWithIgnoreCase(path, ".svg"); }

}  // namespace

absl::Status CheckPictureName(const std::string& path) {
  if (IsSvg(path) || absl::EndsWithIgnoreCase(path, ".png")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--plot is \"", path, "\"; expected a name that ends in .png or .svg, as budget.png"));
}

absl::Status DrawEvaluation(const Evaluation& evaluation, const std::string& data, const std::string& path) {
  if (absl::Status status = CheckPictureName(path); !status.ok()) return status;
  const bool one_panel = evaluation.rows[0].quality.Measure()[0] == '\0';
  const double height = kHeight - (one_panel ? kPanel + kGap : 0);
  constexpr double kScale = 1.5;  // pixels of a PNG per unit
  cairo_surface_t* surface = IsSvg(path)
                                 ? cairo_svg_surface_create(path.c_str(), kWidth, height)
                                 : cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(kScale * kWidth),
                                                              static_cast<int>(kScale * height));
  cairo_t* cairo = cairo_create(surface);
  if (!IsSvg(path)) cairo_scale(cairo, kScale, kScale);
  Draw(cairo, evaluation, data);
  cairo_status_t status = cairo_status(cairo);
  cairo_destroy(cairo);
  if (status == CAIRO_STATUS_SUCCESS && !IsSvg(path)) status = cairo_surface_write_to_png(surface, path.c_str());
  cairo_surface_finish(surface);
  if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(surface);
  cairo_surface_destroy(surface);
  if (status == CAIRO_STATUS_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--plot: cannot write \"", path, "\": ", cairo_status_to_string(status)));
}

}  // namespace edgewise::cli
