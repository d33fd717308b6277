// Reads a model's config.json (docs/model-format.md).
#ifndef EDGEWISE_MODEL_CHECKPOINT_PARSE_CONFIG_H_
#define EDGEWISE_MODEL_CHECKPOINT_PARSE_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "model/config/config.h"
#include "model/kinds/kind.h"

namespace edgewise {

// Parses config.json and checks all that can be checked without the weights. INVALID_ARGUMENT: the message names the
// field, the value found and the values allowed, or an unknown field and the known name nearest to it.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, AttentionKinds kinds = Kinds());

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_PARSE_CONFIG_H_
