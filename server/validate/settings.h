// Merges the settings of a request: its own fields, else those of its profile, within the model's limits. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_SETTINGS_H_
#define EDGEWISE_SERVER_VALIDATE_SETTINGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/config/profiles.h"

namespace edgewise::server {

// `message`: v1::PredictRequest or v1::GenerateRequest. `asked`: the profile's name, instead of the message's; empty:
// the default. Fields of the message override the profile. A graph or DENSE also disables the profile's override;
// returning a graph disables its samples; a part of an ensemble disables its tolerance. A request without a cap gets
// that of the limits. budget.keep is that of the message, else of the profile, without the model's default. Only the
// profile's name and the limit of samples are checked. INVALID_ARGUMENT: profile, with the names that there are;
// ensemble.samples.
template <typename Message>
absl::StatusOr<v1::Settings> SettingsOf(const Message& message, const std::string& asked, const Profiles& profiles);

// A profile as messages show it.
v1::Settings ToMessage(const std::string& name, const Profile& profile);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_SETTINGS_H_
