// Reads the fields `profiles`, `limits` and `shadow` of config.json (docs/model-format.md).
#ifndef EDGEWISE_MODEL_CHECKPOINT_PARSE_PROFILES_H_
#define EDGEWISE_MODEL_CHECKPOINT_PARSE_PROFILES_H_

#include <optional>
#include <string>

#include "base/json_object.h"
#include "model/config/config.h"

namespace edgewise {

// Reads a field that names a CapRule, "random" or "probable". Errors go to `object`: another value, or no layer of
// `config` draws its edges by their rates.
std::optional<CapRule> ParseKeep(JsonObject& object, const std::string& field, const ModelConfig& config);

// Reads the three fields. All fields that override needs, and the task, are in `config`. Errors go to `object`.
Profiles ParseProfiles(JsonObject& object, const ModelConfig& config);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_PARSE_PROFILES_H_
