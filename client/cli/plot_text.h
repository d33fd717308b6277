// A plot for the terminal: which queries have edges to which keys, over all heads together.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_TEXT_H_
#define EDGEWISE_CLIENT_CLI_PLOT_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/plot_source.h"

namespace edgewise::cli {

// The picture is at most 80 columns wide. `colour`: with ANSI escapes; the shades say the same without.
absl::StatusOr<std::string> PlotText(const PlotSource& source, bool colour);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_TEXT_H_
