// A page to draw on: texts, boxes and pictures of cells, in a PNG, in an SVG, or nowhere, to measure.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_CANVAS_H_
#define EDGEWISE_CLIENT_CLI_PLOT_CANVAS_H_

#include <cairo.h>

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace edgewise::cli {

struct Colour {
  double red, green, blue;
};

inline constexpr Colour kWhite = {1, 1, 1};
inline constexpr Colour kInk = {0.13, 0.13, 0.13};
inline constexpr Colour kGrey = {0.42, 0.42, 0.42};
inline constexpr Colour kPale = {0.87, 0.89, 0.91};
inline constexpr Colour kBlue = {0.129, 0.443, 0.710};
inline constexpr Colour kOrange = {0.835, 0.369, 0.0};

struct Size {
  double width = 0;
  double height = 0;
};

struct TextStyle {
  double size = 11;
  double anchor = 0;  // 0: the text starts at x; 0.5: is centred there; 1: ends there
  bool bold = false;
  Colour colour = kInk;
};

class Canvas {
 public:
  explicit Canvas(cairo_t* cairo) : cairo_(cairo) {}

  void Fill(double x, double y, double width, double height, Colour colour);
  void Frame(double x, double y, double width, double height);
  void Dot(double x, double y, double radius, Colour colour);
  void Line(double x0, double y0, double x1, double y1, Colour colour, double width = 1, bool dashed = false);
  // An outlined regular polygon around (x, y), turned by a share of a corner; without corners a circle.
  void Polygon(double x, double y, double radius, int corners, double turn, Colour inside, Colour outline);
  // y: the middle of the line. Cut to `room`, where that is not 0, with an ellipsis.
  void Text(double x, double y, const std::string& text, const TextStyle& style = {}, double room = 0);
  // Turned by 90 degrees, reads upwards, its `anchor` at y; x: the middle of the line.
  void TurnedText(double x, double y, const std::string& text, const TextStyle& style = {}, double room = 0);
  // Broken at blanks into lines of `width`, the first one around y. Returns where the next line would be.
  double Paragraph(double x, double y, double width, const std::string& text, const TextStyle& style = {});
  double TextWidth(const std::string& text, const TextStyle& style = {});
  // rows x columns rectangles as large as `cell`. `colour` sets the colour of one, or returns false: it stays white.
  void Cells(double x, double y, int rows, int columns, Size cell,
             const std::function<bool(int, int, Colour&)>& colour);

 private:
  std::string Cut(std::string text, double room);
  void Select(const TextStyle& style);
  cairo_t* cairo_;
};

// Writes a PNG or an SVG, by the end of the name. Calls `draw` twice: to learn the size of the page, which it returns,
// and to draw it. FailedPrecondition when the file cannot be written.
absl::Status DrawPage(const std::string& path, const std::function<Size(Canvas&)>& draw);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_CANVAS_H_
