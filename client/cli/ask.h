// One input, one answer: commands that send a file of inputs send them one by one, so that an input that the server
// refuses costs no other.
#ifndef EDGEWISE_CLIENT_CLI_ASK_H_
#define EDGEWISE_CLIENT_CLI_ASK_H_

#include "absl/status/statusor.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// `request` with this one input. The answer has one prediction; Internal where the server sent another number of them.
absl::StatusOr<v1::PredictResponse> AskOne(Client& client, v1::PredictRequest request, const v1::Input& input);

// After an error of this code the next input would fare no better.
bool IsHopeless(absl::StatusCode code);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_ASK_H_
