// Draws an evaluation: how good the answers are, and how fast, against the density they used.
#ifndef EDGEWISE_CLIENT_CLI_EVALUATE_PLOT_H_
#define EDGEWISE_CLIENT_CLI_EVALUATE_PLOT_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/evaluation.h"

namespace edgewise::cli {

// Writes a PNG or an SVG, by the name's end. `data` names the inputs in the subtitle. FailedPrecondition when the file
// cannot be written. The evaluation has answers to dense attention.
absl::Status DrawEvaluation(const Evaluation& evaluation, const std::string& data, const std::string& path);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_EVALUATE_PLOT_H_
