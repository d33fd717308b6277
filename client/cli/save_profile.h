// A row of `edgewise evaluate` as a profile in a model's config.json (docs/model-format.md).
#ifndef EDGEWISE_CLIENT_CLI_SAVE_PROFILE_H_
#define EDGEWISE_CLIENT_CLI_SAVE_PROFILE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "client/cli/evaluation.h"

namespace edgewise::cli {

// The fields of the override that are set, by the names of config.json.
nlohmann::ordered_json OverrideJson(const v1::AttentionOverride& override);

// A profile that asks as `setting` does, with caps that keep the edges that `keep_edges` names ("": the model's way).
// Empty for the model's own attention with one sample. No profile can ask for dense attention.
nlohmann::ordered_json ProfileJson(const Setting& setting, const std::string& keep_edges);

// Whether SaveProfile() can do it. InvalidArgument for a name that no profile may have, a file that is not a JSON
// object, or one that has the profile already; NotFound for one that cannot be read. Flags are named.
absl::Status CheckProfile(const std::string& config, const std::string& name);

// Adds the profile to the file `config`: the other fields stay, in their order. The file is replaced as a whole, so a
// server never reads half of it. FailedPrecondition where it cannot be written.
absl::Status SaveProfile(const std::string& config, const std::string& name, const nlohmann::ordered_json& profile);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_SAVE_PROFILE_H_
