// Draws a Plot with cairo.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_
#define EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/plot_layout.h"

namespace edgewise::cli {

// InvalidArgument unless the name ends in .png or .svg.
absl::Status CheckPlotPath(const std::string& path);

// Writes a PNG or an SVG, as the name ends. FailedPrecondition when the file cannot be written.
absl::Status DrawPlot(const Plot& plot, const std::string& path);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_
