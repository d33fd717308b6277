#include "client/cli/ask.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace edgewise::cli {

absl::StatusOr<v1::PredictResponse> AskOne(Client& client, v1::PredictRequest request, const v1::Input& input) {
  *request.add_inputs() = input;
  absl::StatusOr<v1::PredictResponse> response = client.Predict(request);
  if (!response.ok() || response->predictions_size() == 1) return response;
  return absl::InternalError(absl::StrCat("the answer has ", response->predictions_size(), " predictions for 1 input"));
}

bool IsHopeless(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kUnauthenticated ||
         code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kUnimplemented;
}

}  // namespace edgewise::cli
