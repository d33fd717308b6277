// Draws a Plot with cairo.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_
#define EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/plot_layout.h"

namespace edgewise::cli {

// Writes a PNG. FailedPrecondition when the file cannot be written.
absl::Status DrawPlot(const Plot& plot, const std::string& path);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_DRAW_H_
