#include "server/validate/settings.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace edgewise::server {
namespace {

bool HasCap(const v1::Budget& budget) { return budget.has_max_edges() || budget.has_max_density(); }

// Null: none.
absl::StatusOr<const Profile*> FindProfile(const std::string& asked, const Profiles& profiles) {
  if (asked == kNoProfile || (asked.empty() && profiles.default_name.empty())) return nullptr;
  const auto found = profiles.by_name.find(asked.empty() ? profiles.default_name : asked);
  if (found != profiles.by_name.end()) return &found->second;
  std::vector<std::string> names = {kNoProfile};
  for (const auto& [name, profile] : profiles.by_name) names.push_back(name);
  return FieldError("profile", absl::StrCat("is ", Quoted(asked), "; allowed are ", absl::StrJoin(names, ", ")));
}

bool TakesSamples(const v1::PredictRequest& message) { return !message.outputs().graph(); }
bool TakesSamples(const v1::GenerateRequest&) { return true; }

bool TakesTolerance(const v1::PredictRequest& message) { return message.ensemble().first_sample() == 0; }
bool TakesTolerance(const v1::GenerateRequest&) { return false; }

bool HasGraph(const v1::PredictRequest& message) {
  return std::any_of(message.inputs().begin(), message.inputs().end(),
                     [](const v1::Input& input) { return input.has_graph(); });
}
bool HasGraph(const v1::GenerateRequest&) { return false; }

void SetCap(const Profile& profile, v1::Settings& settings) {
  if (profile.max_edges > 0) settings.mutable_budget()->set_max_edges(profile.max_edges);
  if (profile.max_density > 0.0) settings.mutable_budget()->set_max_density(profile.max_density);
}

void SetKeep(const Profile& profile, v1::Settings& settings) {
  if (!profile.keep) return;
  settings.mutable_budget()->set_keep(*profile.keep == CapRule::kProbable ? v1::PROBABLE : v1::RANDOM);
}

void SetOverride(const AttentionOverride& override, v1::AttentionOverride& message) {
  message.set_kind(override.kind);
  message.set_windows(override.windows);
  message.set_keep(override.keep);
  message.mutable_sigma()->Add(override.sigma.begin(), override.sigma.end());
  message.set_last_layers(override.last_layers);
  message.set_window_tokens(override.window_tokens);
  message.set_block_size(override.block_size);
  message.set_pattern(override.pattern);
  if (override.threshold) message.set_threshold(*override.threshold);
  if (override.width) message.set_width(*override.width);
  message.set_stride(override.stride);
}

}  // namespace

template <typename Message>
absl::StatusOr<v1::Settings> SettingsOf(const Message& message, const std::string& asked, const Profiles& profiles) {
  ASSIGN_OR_RETURN(const Profile* const profile, FindProfile(asked, profiles));
  v1::Settings settings;
  if (message.budget().has_max_edges()) settings.mutable_budget()->set_max_edges(message.budget().max_edges());
  if (message.budget().has_max_density()) settings.mutable_budget()->set_max_density(message.budget().max_density());
  const bool keeps = message.budget().keep() != v1::KEEP_MODEL_DEFAULT;
  if (keeps) settings.mutable_budget()->set_keep(message.budget().keep());
  settings.set_samples(message.ensemble().samples());
  settings.set_tolerance(message.ensemble().tolerance());
  if (message.has_override()) *settings.mutable_override() = message.override();
  if (profile != nullptr) {
    settings.set_profile(asked.empty() ? profiles.default_name : asked);
    if (!HasCap(settings.budget())) SetCap(*profile, settings);
    if (!keeps) SetKeep(*profile, settings);
    if (settings.samples() == 0 && TakesSamples(message)) settings.set_samples(profile->samples);
    if (settings.tolerance() == 0.0 && TakesTolerance(message)) settings.set_tolerance(profile->tolerance);
    const bool own_attention = message.has_override() || message.attention() == v1::DENSE || HasGraph(message);
    if (profile->override && !own_attention) SetOverride(*profile->override, *settings.mutable_override());
  }
  if (!HasCap(settings.budget())) SetCap(profiles.limits, settings);
  const uint32_t most = profiles.limits.samples;
  REFUSE_IF(most > 0 && settings.samples() > most, "ensemble.samples", "is ", settings.samples(),
            "; the model's limits allow at most ", most);
  return settings;
}
template absl::StatusOr<v1::Settings> SettingsOf(const v1::PredictRequest&, const std::string&, const Profiles&);
template absl::StatusOr<v1::Settings> SettingsOf(const v1::GenerateRequest&, const std::string&, const Profiles&);

v1::Settings ToMessage(const std::string& name, const Profile& profile) {
  v1::Settings settings;
  settings.set_profile(name);
  SetCap(profile, settings);
  SetKeep(profile, settings);
  settings.set_samples(profile.samples);
  settings.set_tolerance(profile.tolerance);
  if (profile.override) SetOverride(*profile.override, *settings.mutable_override());
  return settings;
}

}  // namespace edgewise::server
