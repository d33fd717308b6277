// What a request runs with: its own fields, else those of its profile, within the model's limits. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_SETTINGS_H_
#define EDGEWISE_SERVER_VALIDATE_SETTINGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/checkpoint/profiles.h"

namespace edgewise::server {

// `message`: v1::PredictRequest or v1::GenerateRequest. `asked`: the profile's name, instead of the message's; empty:
// the default. What the message gives wins, and what goes with it alone: a graph or attention DENSE leave the profile's
// override out, a returned graph its samples, a part of an ensemble its tolerance. A request without a cap gets that of
// the limits. budget.keep is what the message, else the profile says, without the model's default; nothing else is
// checked but the profile's name and the limit of samples. INVALID_ARGUMENT: profile, with the names that there are;
// ensemble.samples.
template <typename Message>
absl::StatusOr<v1::Settings> SettingsOf(const Message& message, const std::string& asked, const Profiles& profiles);

// A profile as messages show it.
v1::Settings ToMessage(const std::string& name, const Profile& profile);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_SETTINGS_H_
