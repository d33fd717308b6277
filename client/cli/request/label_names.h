// Labels of data that are names: ids by the names that the model gives its labels.
#ifndef EDGEWISE_CLIENT_CLI_REQUEST_LABEL_NAMES_H_
#define EDGEWISE_CLIENT_CLI_REQUEST_LABEL_NAMES_H_

#include <vector>

#include "absl/status/status.h"
#include "client/cli/request/inputs.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

bool HasLabelNames(const std::vector<LabelledInput>& inputs);

// Puts the id in the place of each name. InvalidArgument, with the place, the field and the names that the model has,
// where it has not this one, or has it twice.
absl::Status ResolveLabelNames(const v1::ModelInfo& model, std::vector<LabelledInput>& inputs);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_REQUEST_LABEL_NAMES_H_
