// Details that travel with a refusal, as absl::Status payloads whose bytes are google.rpc messages
// (proto/edgewise/status_details.proto). grpc_status.h puts them into the answer.
#ifndef EDGEWISE_SERVER_STATUS_DETAILS_H_
#define EDGEWISE_SERVER_STATUS_DETAILS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace edgewise::server {

inline constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
inline constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// google.rpc.RetryInfo: try again after this long. No effect on OK.
void SetRetryDelay(absl::Status& status, double seconds);
// The delay that SetRetryDelay put in, in seconds; < 0: none.
double RetryDelay(const absl::Status& status);

// UNAVAILABLE with RetryInfo: what a drain answers.
absl::Status ShuttingDown();

// INVALID_ARGUMENT "<field> <what>", with google.rpc.BadRequest naming the field.
absl::Status InvalidField(const std::string& field, const std::string& what);
// The same with a message of its own.
absl::Status InvalidFieldMessage(const std::string& field, const std::string& message);

// google.rpc.Status with the payloads as details; empty where there are none.
std::string EncodeStatus(const absl::Status& status);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_STATUS_DETAILS_H_
