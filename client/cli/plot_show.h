// predict --plot: asks for the edges of an answer and draws them.
#ifndef EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_
#define EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_

#include <iosfwd>
#include <string>

#include "absl/status/status.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

inline constexpr char kTerminal[] = "-";  // as a path: the picture is printed

// Draws `response`, the answer to `request` with this one input, into the file `path`, or as text into `out`. Makes one
// more request for the edges of the first sample; without them (a graph has its limits) the picture shows keys alone
// and says why.
absl::Status ShowPlot(const std::string& path, Client& client, const v1::PredictRequest& request,
                      const v1::Input& input, const v1::PredictResponse& response, std::ostream& out);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_PLOT_SHOW_H_
