// A plot of an answer: in a file, or in the terminal.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_
#define EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_

#include <iosfwd>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/plot_layout.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

inline constexpr char kTerminal[] = "-";  // as a path: the picture is printed

// predict --plot: draws `response`, the answer to `request` with this one input, into the file `path`, or as text into
// `out`. Makes one more request for the edges of the first sample; without them (a graph has its limits) the picture
// shows keys alone and says why.
absl::Status ShowPlot(const std::string& path, Client& client, const v1::PredictRequest& request,
                      const v1::Input& input, const v1::PredictResponse& response, std::ostream& out);

// InvalidArgument unless the name of a --plot ends in .png or .svg. `hint` ends the message.
absl::Status CheckPictureName(const std::string& path, const char* hint);

// Writes a PNG or an SVG, by the end of the name. FailedPrecondition when the file cannot be written.
absl::Status DrawPlot(const Plot& plot, const std::string& path);

// The queries that have edges to the keys, over all heads together, at most 80 columns wide. `colour`: with ANSI
// escapes; the shades say the same without.
absl::StatusOr<std::string> PlotText(const PlotSource& source, bool colour);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_
