#include "client/cli/plot_draw.h"

#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace edgewise::cli {
namespace {

constexpr double kMargin = 24;
constexpr double kLeft = 150;       // room for the rows' names
constexpr double kRight = 90;       // and for the heads' density
constexpr double kHeader = 112;     // title, subtitle, colour scale
constexpr double kLayerGap = 6;     // between layers
constexpr double kTokenRoom = 110;  // turned tokens below a panel, at most
constexpr double kNumberRoom = 28;  // position numbers below a panel
constexpr double kPanelTitle = 26;
constexpr double kMatrixSide = 232;
constexpr double kMatrixGap = 28;
constexpr double kScaleWidth = 240;

struct Colour {
  double red, green, blue;
};

// White to dark blue, monotone in lightness.
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

// Below a panel, for the turned tokens or the position numbers.
double LabelRoom(const HeatPanel& panel) {
  size_t longest = 0;
  for (const std::string& label : panel.labels) longest = std::max(longest, label.size());
  return panel.labels.empty() ? kNumberRoom : std::min(kTokenRoom, 20.0 + 8.0 * static_cast<double>(longest));
}

double PanelHeight(const HeatPanel& panel) {
  double height = (panel.title.empty() ? 0 : kPanelTitle) + LabelRoom(panel) + 16;
  for (size_t r = 0; r < panel.rows.size(); ++r) {
    height += panel.cell_height + (r > 0 && panel.rows[r].layer != panel.rows[r - 1].layer ? kLayerGap : 0);
  }
  return height;
}

double PanelWidth(const HeatPanel& panel) {
  return kLeft + kRight + static_cast<double>(panel.rows[0].share.size()) * panel.cell_width;
}

class Canvas {
 public:
  Canvas(double width, double height)
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width), static_cast<int>(height))),
        cairo_(cairo_create(surface_)) {
    Fill(0, 0, width, height, {1, 1, 1});
  }
  ~Canvas() {
    cairo_destroy(cairo_);
    cairo_surface_destroy(surface_);
  }
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;

  void Fill(double x, double y, double width, double height, Colour colour) {
    cairo_set_source_rgb(cairo_, colour.red, colour.green, colour.blue);
    cairo_rectangle(cairo_, x, y, width, height);
    cairo_fill(cairo_);
  }
  void Frame(double x, double y, double width, double height) {
    cairo_set_source_rgb(cairo_, 0.7, 0.7, 0.7);
    cairo_set_line_width(cairo_, 1);
    cairo_rectangle(cairo_, x - 0.5, y - 0.5, width + 1, height + 1);
    cairo_stroke(cairo_);
  }
  // anchor: 0 the text starts at x, 0.5 is centred, 1 ends there; y is the middle of the line.
  void Text(double x, double y, double size, const std::string& text, double anchor = 0, bool bold = false) {
    Select(size, bold);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, text.c_str(), &extents);
    cairo_move_to(cairo_, x - anchor * extents.x_advance, y + 0.36 * size);
    cairo_show_text(cairo_, text.c_str());
  }
  // Turned by 90 degrees, reading upwards, ending at (x, y); cut to `room` pixels.
  void TurnedText(double x, double y, double size, std::string text, double room) {
    Select(size, false);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, text.c_str(), &extents);
    while (extents.x_advance > room && !text.empty()) {
      while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
      if (!text.empty()) text.pop_back();
      cairo_text_extents(cairo_, (text + "…").c_str(), &extents);
      if (extents.x_advance <= room) text += "…";
    }
    cairo_save(cairo_);
    cairo_translate(cairo_, x, y);
    cairo_rotate(cairo_, -std::numbers::pi / 2);
    cairo_move_to(cairo_, -extents.x_advance, 0.36 * size);
    cairo_show_text(cairo_, text.c_str());
    cairo_restore(cairo_);
  }
  absl::Status Write(const std::string& path) {
    cairo_status_t status = cairo_status(cairo_);
    if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_write_to_png(surface_, path.c_str());
    if (status == CAIRO_STATUS_SUCCESS) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--plot: cannot write \"", path, "\": ", cairo_status_to_string(status)));
  }

 private:
  void Select(double size, bool bold) {
    cairo_select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo_, size);
    cairo_set_source_rgb(cairo_, 0.13, 0.13, 0.13);
  }
  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

void DrawHeader(Canvas& canvas, const Plot& plot) {
  canvas.Text(kMargin, 28, 17, plot.title, 0, true);
  canvas.Text(kMargin, 52, 12, plot.subtitle);
  canvas.Text(kMargin, 86, 12, "Share of queries that attend to the token:  0 %");
  const double x = kMargin + 318;
  constexpr int kSteps = 120;
  for (int i = 0; i < kSteps; ++i) {
    canvas.Fill(x + i * kScaleWidth / kSteps, 79, kScaleWidth / kSteps + 0.5, 14, Ramp((i + 0.5) / kSteps));
  }
  canvas.Frame(x, 79, kScaleWidth, 14);
  canvas.Text(x + kScaleWidth + 8, 86, 12, absl::StrFormat("%g %%", 100 * plot.largest_share));
}

void DrawPanel(Canvas& canvas, const HeatPanel& panel, double scale, double y) {
  if (!panel.title.empty()) {
    canvas.Text(kMargin, y + 9, 13, panel.title, 0, true);
    y += kPanelTitle;
  }
  const double columns = static_cast<double>(panel.rows[0].share.size());
  const bool room_for_names = panel.cell_height >= 12;
  canvas.Text(kLeft + columns * panel.cell_width + 10, y - 9, 10, "density");
  for (size_t r = 0; r < panel.rows.size(); ++r) {
    const HeatRow& row = panel.rows[r];
    const bool new_layer = r == 0 || row.layer != panel.rows[r - 1].layer;
    if (new_layer && r > 0) y += kLayerGap;
    const double middle = y + panel.cell_height / 2.0;
    if (room_for_names) {
      canvas.Text(kLeft - 10, middle, 11, absl::StrCat("layer ", row.layer, "  head ", row.head), 1);
      canvas.Text(kLeft + columns * panel.cell_width + 10, middle, 11, absl::StrFormat("%.1f %%", 100 * row.density));
    } else if (new_layer) {
      canvas.Text(kLeft - 10, middle + 3, 11, absl::StrCat("layer ", row.layer), 1);
    }
    for (size_t c = 0; c < row.share.size(); ++c) {
      const double gap = panel.cell_width >= 8 ? 1 : 0;
      canvas.Fill(kLeft + static_cast<double>(c) * panel.cell_width, y, panel.cell_width - gap, panel.cell_height - 1,
                  Ramp(row.share[c] / scale));
    }
    y += panel.cell_height;
  }
  for (size_t c = 0; c < panel.labels.size(); ++c) {
    const double x = kLeft + (static_cast<double>(c) + 0.5) * panel.cell_width;
    canvas.TurnedText(x, y + 6, 11, panel.labels[c], kTokenRoom - 10);
  }
  if (panel.labels.empty()) {
    for (int position = 0; position < panel.positions; position += panel.tick_step) {
      const double x = kLeft + (static_cast<double>(position) / panel.bin + 0.5) * panel.cell_width;
      canvas.Text(x, y + 12, 10, absl::StrCat(position), 0.5);
    }
    canvas.Text(kLeft - 10, y + 12, 10,
                panel.bin == 1 ? "position" : absl::StrCat("position (", panel.bin, " a column)"), 1);
  }
}

void DrawMatrix(Canvas& canvas, const Matrix& matrix, bool pair, double x, double y) {
  canvas.Text(x, y + 8, 11,
              absl::StrCat(pair ? (matrix.sequence == 0 ? "first, " : "second, ") : "", "layer ", matrix.layer,
                           "  head ", matrix.head));
  y += 20;
  const double cell = kMatrixSide / matrix.size;
  float largest = 1e-6f;
  for (float weight : matrix.weight) largest = std::max(largest, weight);
  for (int q = 0; q < matrix.size; ++q) {
    for (int k = 0; k < matrix.size; ++k) {
      const float weight = matrix.weight[static_cast<size_t>(q) * matrix.size + k];
      if (weight == 0.0f) continue;
      // The square root lifts small weights; the offset keeps the faintest edge off the white ground.
      canvas.Fill(x + k * cell, y + q * cell, cell, cell, Ramp(0.25 + 0.75 * std::sqrt(weight / largest)));
    }
  }
  canvas.Frame(x, y, kMatrixSide, kMatrixSide);
}

}  // namespace

absl::Status DrawPlot(const Plot& plot, const std::string& path) {
  double width = 720;
  double height = kHeader + kMargin;
  for (const HeatPanel& panel : plot.panels) {
    width = std::max(width, PanelWidth(panel));
    height += PanelHeight(panel);
  }
  int per_row = std::max(1, static_cast<int>((width - 2 * kMargin + kMatrixGap) / (kMatrixSide + kMatrixGap)));
  int heads = 0;
  for (const Matrix& matrix : plot.matrices) heads = std::max(heads, matrix.head + 1);
  if (heads > 0 && heads <= per_row) per_row -= per_row % heads;  // a layer does not run over the end of a line
  const int matrix_rows = (static_cast<int>(plot.matrices.size()) + per_row - 1) / per_row;
  if (matrix_rows > 0) height += 40 + matrix_rows * (kMatrixSide + 20 + kMatrixGap);

  Canvas canvas(width, height);
  DrawHeader(canvas, plot);
  double y = kHeader + 12;
  for (const HeatPanel& panel : plot.panels) {
    DrawPanel(canvas, panel, plot.largest_share, y);
    y += PanelHeight(panel);
  }
  if (matrix_rows > 0) {
    canvas.Text(kMargin, y + 8, 13, "Attention graph: queries downwards, keys to the right; darker: more weight", 0,
                true);
    y += 32;
  }
  for (size_t m = 0; m < plot.matrices.size(); ++m) {
    const double column = static_cast<double>(m % per_row);
    const double row = std::floor(static_cast<double>(m) / per_row);
    DrawMatrix(canvas, plot.matrices[m], plot.panels.size() == 2, kMargin + column * (kMatrixSide + kMatrixGap),
               y + row * (kMatrixSide + 20 + kMatrixGap));
  }
  return canvas.Write(path);
}

}  // namespace edgewise::cli
