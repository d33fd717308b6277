// Puts the attention of an override in the place of a model's. Any thread.
#ifndef EDGEWISE_MODEL_KINDS_OVERRIDE_H_
#define EDGEWISE_MODEL_KINDS_OVERRIDE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config/config.h"

namespace edgewise {

class JsonObject;
struct Draw;

// The attention of every layer under an override. Layers that are dense or ssa can be replaced; pattern learned gives
// the model's learned block layers another threshold and leaves the other layers as they are. INVALID_ARGUMENT: the
// message begins with the name of the field and says what is allowed.
absl::StatusOr<std::vector<AttentionConfig>> OverrideAttention(const ModelConfig& config,
                                                               const AttentionOverride& override);

// The end of a message about a cap that these draws cannot keep, as they attend to every pair and none can be dropped:
// what to do about it. Empty where they are sparse, or an override already. A given graph is not known.
std::string SparseRemedy(const ModelConfig& config, const Draw& draw);

// Reads the fields, named as above. Checks their types alone: errors go to `object`.
AttentionOverride ReadOverride(JsonObject& object);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_OVERRIDE_H_
