#include "client/cli/plot_canvas.h"

#include <cairo-svg.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace edgewise::cli {
namespace {

using Surface = std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)>;
using Context = std::unique_ptr<cairo_t, decltype(&cairo_destroy)>;

constexpr double kLeastVectorCell = 4;  // smaller cells are one image: an SVG of a million rectangles opens nowhere

bool IsSvg(const std::string& path) { return absl::EndsWithIgnoreCase(path, ".svg"); }

Surface Own(cairo_surface_t* surface) { return {surface, cairo_surface_destroy}; }

uint32_t Pixel(Colour colour) {
  auto byte = [](double part) { return static_cast<uint32_t>(std::lround(255 * part)); };
  return 0xff000000u | byte(colour.red) << 16 | byte(colour.green) << 8 | byte(colour.blue);
}

}  // namespace

void Canvas::Fill(double x, double y, double width, double height, Colour colour) {
  cairo_set_source_rgb(cairo_, colour.red, colour.green, colour.blue);
  cairo_rectangle(cairo_, x, y, width, height);
  cairo_fill(cairo_);
}

void Canvas::Frame(double x, double y, double width, double height) {
  cairo_set_source_rgb(cairo_, 0.7, 0.7, 0.7);
  cairo_set_line_width(cairo_, 1);
  cairo_rectangle(cairo_, x - 0.5, y - 0.5, width + 1, height + 1);
  cairo_stroke(cairo_);
}

void Canvas::Dot(double x, double y, double radius, Colour colour) {
  cairo_set_source_rgb(cairo_, colour.red, colour.green, colour.blue);
  cairo_arc(cairo_, x, y, radius, 0, 2 * std::numbers::pi);
  cairo_fill(cairo_);
}

void Canvas::Text(double x, double y, const std::string& text, const TextStyle& style, double room) {
  Select(style);
  const std::string cut = Cut(text, room);
  cairo_move_to(cairo_, x - style.anchor * TextWidth(cut, style), y + 0.36 * style.size);
  cairo_show_text(cairo_, cut.c_str());
}

void Canvas::TurnedText(double x, double y, const std::string& text, const TextStyle& style, double room) {
  cairo_save(cairo_);
  cairo_translate(cairo_, x, y);
  cairo_rotate(cairo_, -std::numbers::pi / 2);
  Text(0, 0, text, style, room);
  cairo_restore(cairo_);
}

double Canvas::Paragraph(double x, double y, double width, const std::string& text, const TextStyle& style) {
  const double line_height = std::round(1.45 * style.size);
  std::string line;
  for (const auto& word : absl::StrSplit(text, ' ')) {
    const std::string longer = line.empty() ? std::string(word) : absl::StrCat(line, " ", word);
    if (!line.empty() && TextWidth(longer, style) > width) {
      Text(x, y, line, style);
      y += line_height;
      line = std::string(word);
    } else {
      line = longer;
    }
  }
  Text(x, y, line, style, width);
  return y + line_height;
}

double Canvas::TextWidth(const std::string& text, const TextStyle& style) {
  Select(style);
  cairo_text_extents_t extents;
  cairo_text_extents(cairo_, text.c_str(), &extents);
  return extents.x_advance;
}

void Canvas::Cells(double x, double y, int rows, int columns, Size cell,
                   const std::function<bool(int, int, Colour&)>& colour) {
  const bool vector = std::min(cell.width, cell.height) >= kLeastVectorCell;
  const double gap = vector && cell.width >= 8 ? 1 : 0;
  const int wide = static_cast<int>(cell.width), high = static_cast<int>(cell.height);
  Surface image = Own(vector ? nullptr : cairo_image_surface_create(CAIRO_FORMAT_RGB24, columns * wide, rows * high));
  unsigned char* pixels = vector ? nullptr : cairo_image_surface_get_data(image.get());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      Colour paint = {1, 1, 1};
      const bool there = colour(r, c, paint);
      if (vector && there) Fill(x + c * cell.width, y + r * cell.height, cell.width - gap, cell.height - gap, paint);
      if (pixels == nullptr) continue;
      for (int line = r * high; line < (r + 1) * high; ++line) {
        auto* start = reinterpret_cast<uint32_t*>(pixels + line * cairo_image_surface_get_stride(image.get()));
        std::fill_n(start + c * wide, wide, Pixel(paint));
      }
    }
  }
  if (pixels == nullptr) return;
  cairo_surface_mark_dirty(image.get());
  cairo_set_source_surface(cairo_, image.get(), x, y);
  cairo_pattern_set_filter(cairo_get_source(cairo_), CAIRO_FILTER_NEAREST);
  cairo_rectangle(cairo_, x, y, columns * wide, rows * high);
  cairo_fill(cairo_);
}

void Canvas::Line(double x0, double y0, double x1, double y1, Colour colour, double width, bool dashed) {
  constexpr double kDashes[] = {5, 4};
  cairo_set_dash(cairo_, kDashes, dashed ? 2 : 0, 0);
  cairo_set_line_width(cairo_, width);
  cairo_set_source_rgb(cairo_, colour.red, colour.green, colour.blue);
  cairo_move_to(cairo_, x0, y0);
  cairo_line_to(cairo_, x1, y1);
  cairo_stroke(cairo_);
  cairo_set_dash(cairo_, kDashes, 0, 0);
}

void Canvas::Polygon(double x, double y, double radius, int corners, double turn, Colour inside, Colour outline) {
  cairo_new_path(cairo_);
  if (corners == 0) cairo_arc(cairo_, x, y, radius, 0, 2 * std::numbers::pi);
  for (int c = 0; c < corners; ++c) {
    const double angle = 2 * std::numbers::pi * (c + turn) / corners;
    cairo_line_to(cairo_, x + radius * std::sin(angle), y - radius * std::cos(angle));
  }
  cairo_close_path(cairo_);
  cairo_set_source_rgb(cairo_, inside.red, inside.green, inside.blue);
  cairo_fill_preserve(cairo_);
  cairo_set_source_rgb(cairo_, outline.red, outline.green, outline.blue);
  cairo_set_line_width(cairo_, 1.8);
  cairo_stroke(cairo_);
}

std::string Canvas::Cut(std::string text, double room) {
  cairo_text_extents_t extents;
  cairo_text_extents(cairo_, text.c_str(), &extents);
  if (room <= 0 || extents.x_advance <= room) return text;
  do {
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
    if (!text.empty()) text.pop_back();
    cairo_text_extents(cairo_, absl::StrCat(text, "…").c_str(), &extents);
  } while (!text.empty() && extents.x_advance > room);
  return absl::StrCat(text, "…");
}

void Canvas::Select(const TextStyle& style) {
  cairo_select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                         style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo_, style.size);
  cairo_set_source_rgb(cairo_, style.colour.red, style.colour.green, style.colour.blue);
}

absl::Status DrawPage(const std::string& path, const std::function<Size(Canvas&)>& draw) {
  const bool svg = IsSvg(path);
  auto draw_on = [&draw](cairo_surface_t* surface, Size page) {
    Context cairo(cairo_create(surface), cairo_destroy);
    Canvas canvas(cairo.get());
    canvas.Fill(0, 0, page.width, page.height, {1, 1, 1});
    page = draw(canvas);
    return std::pair(page, cairo_status(cairo.get()));
  };
  const Surface nowhere = Own(cairo_recording_surface_create(CAIRO_CONTENT_COLOR, nullptr));
  const Size page = draw_on(nowhere.get(), {}).first;
  const Surface surface =
      Own(svg ? cairo_svg_surface_create(path.c_str(), page.width, page.height)
              : cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::ceil(page.width)),
                                           static_cast<int>(std::ceil(page.height))));
  if (svg) cairo_svg_surface_set_document_unit(surface.get(), CAIRO_SVG_UNIT_PX);
  cairo_status_t status = draw_on(surface.get(), page).second;
  if (status == CAIRO_STATUS_SUCCESS && !svg) status = cairo_surface_write_to_png(surface.get(), path.c_str());
  cairo_surface_finish(surface.get());
  if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(surface.get());
  if (status == CAIRO_STATUS_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--plot: cannot write \"", path, "\": ", cairo_status_to_string(status)));
}

}  // namespace edgewise::cli
