// The fields `profiles`, `limits` and `shadow` of config.json (docs/model-format.md): what requests get that leave it
// open, the most that a request may have, and which requests are computed again under another profile.
#ifndef EDGEWISE_MODEL_CONFIG_PROFILES_H_
#define EDGEWISE_MODEL_CONFIG_PROFILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/draw/budget.h"
#include "model/config/override.h"

namespace edgewise {

// The name that a request gives for no profile.
inline constexpr char kNoProfile[] = "none";

struct Profile {
  uint64_t max_edges = 0;    // 0: not set. At most one of these two is set
  double max_density = 0.0;  // 0: not set
  std::optional<CapRule> keep;
  uint32_t samples = 0;                       // 0: not set
  double tolerance = 0.0;                     // 0: not set
  std::optional<AttentionOverride> override;  // OverrideAttention took it when the config was read
};

// The share of the answered requests that is computed again, to compare the answers.
struct ShadowConfig {
  std::string profile;  // of Profiles::by_name, or kNoProfile
  double share = 0.0;   // 0 to 1
};

struct Profiles {
  std::map<std::string, Profile> by_name;
  std::string default_name;  // of `by_name`; empty: none
  Profile limits;            // samples and the cap; not set: no limit
  std::optional<ShadowConfig> shadow;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CONFIG_PROFILES_H_
