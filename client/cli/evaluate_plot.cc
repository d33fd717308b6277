#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/evaluation.h"
#include "client/cli/format.h"
#include "client/cli/plot_canvas.h"

namespace edgewise::cli {
namespace {

constexpr double kWidth = 760, kBottom = 52;
constexpr double kLeft = 78, kRight = 36;
constexpr double kLegend = 76, kLegendStep = 20;
constexpr double kTop = 122, kPanel = 200, kGap = 58;
constexpr double kMarker = 5;
constexpr TextStyle kNote = {.size = 11.5};

// Okabe and Ito: told apart with any kind of colour vision. Their markers differ too.
constexpr Colour kSeries[] = {{0.0, 0.447, 0.698}, {0.835, 0.369, 0.0},   {0.0, 0.620, 0.451},
                              {0.8, 0.475, 0.655}, {0.337, 0.706, 0.914}, {0.902, 0.624, 0.0}};

// A regular polygon, turned by a share of a corner; without corners a circle.
struct Marker {
  int corners;
  double turn = 0;
};
constexpr Marker kSeriesMarkers[] = {{0}, {3}, {4}, {5}, {3, 1.5}, {6}}, kDenseMarker = {4, 0.5};

// The settings that differ in their cap alone, by density; or, where there are no caps, in the size of their windows or
// blocks alone. Left out are caps that drop no edge, which change nothing, and caps that were refused for some input:
// their answers are to other inputs.
struct Series {
  std::string name;
  std::vector<const SettingResult*> rows;
};

double Density(const SettingResult& row) { return row.Mean(row.density); }
double Value(const SettingResult& row) { return row.quality.MainMeasure().value.value_or(0.0); }

// "16 samples", "windows 4, 1 sample" with caps, "windows, 1 sample" without.
std::string SeriesName(const Setting& setting, bool caps) {
  std::string name;
  if (setting.override && caps) {
    name = absl::StrCat(Setting{.override = setting.override}.Name(), ", ");
  } else if (setting.override) {
    name = setting.override->kind() == "block" ? absl::StrCat(setting.override->pattern(), " blocks, ")
           : setting.override->keep() > 0      ? "keep, "
           : setting.override->windows() > 0   ? "windows, "
                                               : "window_tokens, ";
  }
  return absl::StrCat(caps && !setting.override ? "caps, " : "", name, Plural(setting.samples, "sample"));
}

std::vector<Series> MakeSeries(const Evaluation& evaluation) {
  std::vector<Series> all;
  const bool caps = std::any_of(evaluation.rows.begin(), evaluation.rows.end(),
                                [](const SettingResult& row) { return row.setting.cap.has_value(); });
  for (const SettingResult& row : evaluation.rows) {
    if (row.setting.dense || row.refused > 0 || (row.setting.cap && row.capped == 0)) continue;
    const std::string name = SeriesName(row.setting, caps);
    if (all.empty() || all.back().name != name) all.push_back({name, {}});
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
  Chart(Canvas& canvas, double least_density) : canvas_(canvas), left_(std::log(least_density) - 0.25) {}

  double X(double density) const {
    constexpr double kEnd = 0.12;  // beyond 100 %
    return kLeft + (kWidth - kLeft - kRight) * (std::log(density) - left_) / (kEnd - left_);
  }
  void BeginPanel(double top, const Axis& axis) {
    top_ = top;
    axis_ = axis;
  }
  double Y(double value) const { return top_ + kPanel * (axis_.high - value) / (axis_.high - axis_.low); }

  // The title of a panel, its grid and its numbers: `scale` times the value, and the unit.
  void Ground(const std::string& title, double scale, const std::string& unit) {
    canvas_.Text(kLeft, top_ - 18, title, {.size = 13, .bold = true});
    for (double value = axis_.low; value <= axis_.high + 0.5 * axis_.step; value += axis_.step) {
      canvas_.Line(kLeft, Y(value), kWidth - kRight, Y(value), kPale);
      canvas_.Text(kLeft - 8, Y(value), absl::StrFormat("%g%s", std::round(1e6 * scale * value) / 1e6, unit),
                   {.anchor = 1});
    }
    for (double power = 1e-6; power < 2; power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double density = factor * power;
        if (std::log(density) < left_ || density > 1.0 + 1e-9) continue;
        canvas_.Line(X(density), top_, X(density), top_ + kPanel, kPale);
        canvas_.Text(X(density), top_ + kPanel + 13, absl::StrFormat("%g %%", 100 * density), {.anchor = 0.5});
      }
    }
  }

 private:
  Canvas& canvas_;
  double left_;  // log of the density at the left edge
  double top_ = 0;
  Axis axis_ = {0, 1, 1};
};

Colour ColourOf(size_t series) { return kSeries[series % std::size(kSeries)]; }
Marker MarkerOf(size_t series) { return kSeriesMarkers[series % std::size(kSeriesMarkers)]; }

void Mark(Canvas& canvas, double x, double y, Marker marker, Colour colour, bool hollow = false) {
  const double radius = marker.corners == 0 ? kMarker : 1.25 * kMarker;
  canvas.Polygon(x, y, radius, marker.corners, marker.turn, hollow ? kWhite : colour, colour);
}

// Curves of `value`, dense attention as a square at 100 % and a dashed line.
template <typename Value>
void DrawCurves(Canvas& canvas, const Chart& chart, const Evaluation& evaluation, const std::vector<Series>& all,
                Value value) {
  const double dense = value(evaluation.rows[0]);
  canvas.Line(kLeft, chart.Y(dense), kWidth - kRight, chart.Y(dense), kGrey, 1.4, true);
  for (size_t s = 0; s < all.size(); ++s) {
    const std::vector<const SettingResult*>& rows = all[s].rows;
    for (size_t r = 1; r < rows.size(); ++r) {
      canvas.Line(chart.X(Density(*rows[r - 1])), chart.Y(value(*rows[r - 1])), chart.X(Density(*rows[r])),
                  chart.Y(value(*rows[r])), ColourOf(s), 1.8);
    }
  }
  for (size_t s = 0; s < all.size(); ++s) {
    for (const SettingResult* row : all[s].rows) {
      Mark(canvas, chart.X(Density(*row)), chart.Y(value(*row)), MarkerOf(s), ColourOf(s), !row->setting.cap);
    }
  }
  Mark(canvas, chart.X(1.0), chart.Y(dense), kDenseMarker, kGrey);
}

// Returns where its last line stands.
double DrawLegend(Canvas& canvas, const std::vector<Series>& all) {
  const bool has_caps = std::any_of(all.begin(), all.end(), [](const Series& series) {
    return std::any_of(series.rows.begin(), series.rows.end(), [](const auto* row) { return row->setting.cap; });
  });
  constexpr double kSample = 26, kSpace = 24, kGapToName = 8;
  double x = kLeft, y = kLegend;
  auto entry = [&](Marker marker, Colour colour, bool line, bool dashed, bool hollow, const std::string& name) {
    const double width = kSample + kGapToName + canvas.TextWidth(name, kNote);
    if (x > kLeft && x + width > kWidth - kRight) {
      x = kLeft;
      y += kLegendStep;
    }
    if (line) canvas.Line(x, y, x + kSample, y, colour, 1.8, dashed);
    Mark(canvas, x + kSample / 2, y, marker, colour, hollow);
    canvas.Text(x + kSample + kGapToName, y, name, kNote);
    x += width + kSpace;
  };
  entry(kDenseMarker, kGrey, true, true, false, "dense attention");
  for (size_t s = 0; s < all.size(); ++s) {
    entry(MarkerOf(s), ColourOf(s), true, false, false, all[s].name);
  }
  if (has_caps) entry(MarkerOf(0), ColourOf(0), false, false, true, "no cap");
  return y;
}

Size Draw(Canvas& canvas, const Evaluation& evaluation, const std::string& data) {
  const std::vector<Series> all = MakeSeries(evaluation);
  std::vector<double> qualities, speeds = {0.0};
  double least = 1.0;
  bool all_known = true;
  for (const SettingResult& row : evaluation.rows) {
    if (row.refused > 0) continue;
    all_known &= row.quality.IsKnown();
    qualities.push_back(Value(row));
    speeds.push_back(Quantile(row.speed, 0.5));
    if (Density(row) > 0) least = std::min(least, Density(row));
  }
  Chart chart(canvas, least);
  canvas.Text(kLeft, 26, absl::StrCat(evaluation.first.model(), ": what a budget buys"), {.size = 16, .bold = true});
  canvas.Text(kLeft, 48,
              absl::StrCat(data, ", ", Plural(evaluation.rows[0].answered, "answer"), " a point, on ",
                           evaluation.first.device()),
              {.size = kNote.size, .colour = kGrey});
  double top = DrawLegend(canvas, all) - kLegend + kTop;
  const std::string measure = evaluation.rows[0].quality.MainMeasure().key;
  if (all_known) {
    const bool share = measure == "accuracy", correlation = measure == "rank_correlation";
    const double spread = *std::max_element(qualities.begin(), qualities.end());
    chart.BeginPanel(top, MakeAxis(qualities, share || correlation ? 0.1 : std::max(0.1 * spread, 1e-6),
                                   correlation ? -1.0 : 0.0, share || correlation ? 1.0 : 1e300));
    chart.Ground(share               ? "Accuracy"
                 : correlation       ? "Rank correlation"
                 : measure == "loss" ? "Loss, nats per token (lower is better)"
                                     : "Mean absolute error (lower is better)",
                 share ? 100 : 1, share ? " %" : "");
    DrawCurves(canvas, chart, evaluation, all, Value);
    top += kPanel + kGap;
  }
  chart.BeginPanel(top, MakeAxis(speeds, 1.0, 0.0, 1e300));
  chart.Ground("Speed: dense compute time / compute time, median over inputs", 1, "×");
  DrawCurves(canvas, chart, evaluation, all, [](const SettingResult& row) { return Quantile(row.speed, 0.5); });
  canvas.Text((kLeft + kWidth - kRight) / 2, top + kPanel + 34,
              "Density: share of all pairs that were attended to, mean (log scale)",
              {.size = kNote.size, .anchor = 0.5});
  return {kWidth, top + kPanel + kBottom};
}

}  // namespace

absl::Status DrawEvaluation(const Evaluation& evaluation, const std::string& data, const std::string& path) {
  return DrawPage(path, [&](Canvas& canvas) { return Draw(canvas, evaluation, data); });
}

}  // namespace edgewise::cli
