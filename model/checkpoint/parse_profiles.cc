#include "model/checkpoint/parse_profiles.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_object.h"
#include "model/config/config.h"
#include "model/kinds/kind.h"
#include "model/kinds/override.h"

namespace edgewise {
namespace {

using nlohmann::json;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxProfiles = 64;
constexpr size_t kMaxName = 64;

// The cap of a profile or of the limits.
void ParseCap(JsonObject& object, Profile& profile) {
  profile.max_edges = static_cast<uint64_t>(object.Integer("max_edges", 1, kMost, 0));
  profile.max_density = object.Number("max_density", 0.0, 1.0, 0.0);
  if (object.Has("max_density") && !(profile.max_density > 0.0)) {
    object.Fail(absl::StrCat(object.Path("max_density"), " is 0; allowed: above 0, to 1"));
  }
  if (object.Has("max_edges") && object.Has("max_density")) {
    object.Fail(absl::StrCat(object.Path("max_density"), " is given beside max_edges; a cap is one of them"));
  }
}

AttentionOverride ParseOverride(const json& value, const std::string& path, const ModelConfig& config,
                                JsonObject& parent) {
  JsonObject object(value, path);
  AttentionOverride override = ReadOverride(object);
  const auto attention = OverrideAttention(config, override);
  if (!attention.ok()) object.Fail(absl::StrCat(path, ".", std::string(attention.status().message())));
  object.FinishInto(parent);
  return override;
}

bool IsName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), allowed);
}

void ParseLimits(JsonObject& object, Profiles& profiles) {
  const json& limits = object.Value("limits", false);
  if (limits.is_null()) return;
  JsonObject fields(limits, "limits");
  ParseCap(fields, profiles.limits);
  profiles.limits.samples = static_cast<uint32_t>(fields.Integer("samples", 1, kMost, 0));
  fields.FinishInto(object);
}

// `profiles.limits` is set.
void ParseByName(JsonObject& object, const ModelConfig& config, Profiles& profiles) {
  const json& all = object.Value("profiles", false);
  if (all.is_null()) return;
  if (!all.is_object() || all.size() > kMaxProfiles) {
    return object.Fail(absl::StrCat("profiles: an object with at most ", kMaxProfiles, " profiles is expected"));
  }
  for (const auto& [name, value] : all.items()) {
    const std::string path = absl::StrCat("profiles.", name);
    if (!IsName(name) || name == kNoProfile) {
      return object.Fail(absl::StrCat("profiles has the name ", ShowJson(json(name)), "; allowed: 1 to ", kMaxName,
                                      " of a-z 0-9 _ -, but not \"", kNoProfile, "\""));
    }
    JsonObject fields(value, path);
    Profile profile;
    ParseCap(fields, profile);
    profile.keep = ParseKeep(fields, "keep", config);
    profile.samples = static_cast<uint32_t>(fields.Integer("samples", 1, kMost, 0));
    profile.tolerance = fields.Number("tolerance", 0.0, std::numeric_limits<double>::max(), 0.0);
    const json& override = fields.Value("override", false);
    if (!override.is_null()) profile.override = ParseOverride(override, path + ".override", config, fields);
    if (profiles.limits.samples > 0 && profile.samples > profiles.limits.samples) {
      fields.Fail(absl::StrCat(path, ".samples is ", profile.samples, "; limits.samples is ", profiles.limits.samples));
    }
    if (fields.Boolean("default", false)) {
      if (!profiles.default_name.empty()) {
        fields.Fail(absl::StrCat(path, ".default is true; so is profiles.", profiles.default_name, ".default"));
      }
      profiles.default_name = name;
    }
    fields.FinishInto(object);
    profiles.by_name.emplace(name, std::move(profile));
  }
}

// `profiles.by_name` is set.
void ParseShadow(JsonObject& object, const ModelConfig& config, Profiles& profiles) {
  const json& value = object.Value("shadow", false);
  if (value.is_null()) return;
  JsonObject fields(value, "shadow");
  ShadowConfig shadow;
  const json& name = fields.Value("profile", true);
  shadow.profile = fields.String("profile", kNoProfile);
  fields.Value("share", true);
  shadow.share = fields.Number("share", 0.0, 1.0, 0.0);
  if (shadow.profile != kNoProfile && profiles.by_name.count(shadow.profile) == 0) {
    std::string names = kNoProfile;
    for (const auto& [known, profile] : profiles.by_name) absl::StrAppend(&names, ", ", known);
    fields.FailAt("profile", name, "allowed: " + names);
  }
  if (GivesValues(config.task)) {
    fields.Fail(absl::StrCat("shadow: ", config.task == ModelTask::kRegression ? "a regression" : "an embedding",
                             " model has no distribution to compare"));
  }
  fields.FinishInto(object);
  profiles.shadow = std::move(shadow);
}

}  // namespace

std::optional<CapRule> ParseKeep(JsonObject& object, const std::string& field, const ModelConfig& config) {
  if (!object.Has(field)) return std::nullopt;
  const bool applies = std::any_of(config.attention.begin(), config.attention.end(),
                                   [](const AttentionConfig& layer) { return layer.kind->memberships; });
  if (!applies) object.Fail(absl::StrCat(object.Path(field), " is given; it is for models with sbm layers"));
  return static_cast<CapRule>(object.Choice(field, {"random", "probable"}, 0));
}

Profiles ParseProfiles(JsonObject& object, const ModelConfig& config) {
  Profiles profiles;
  ParseLimits(object, profiles);
  ParseByName(object, config, profiles);
  ParseShadow(object, config, profiles);
  return profiles;
}

}  // namespace edgewise
