// Details that travel with a refusal as payloads of its absl::Status: the delay before a retry, the reason that the
// metrics count. wire/grpc_status.h sends those that google.rpc has messages for (proto/edgewise/status_details.proto).
#ifndef EDGEWISE_SERVER_BASE_STATUS_DETAILS_H_
#define EDGEWISE_SERVER_BASE_STATUS_DETAILS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace edgewise::server {

inline constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
inline constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// Adds google.rpc.RetryInfo: try again after this long. No effect on OK.
void SetRetryDelay(absl::Status& status, double seconds);
// That delay; none where the status has none.
std::optional<double> RetryDelayOf(const absl::Status& status);

// Why a request got no answer, as edgewise_rejections_total counts it.
// As kRejectionNames (status_details.cc) names them.
enum class Rejection { kQueueFull, kDeadline, kCancelled, kDraining, kInvalid, kBudget, kOutOfMemory, kNotReady };
inline constexpr size_t kRejections = 8;

// For a reason that the status code does not tell. No effect on OK.
absl::Status WithRejection(absl::Status status, Rejection reason);
// That reason, or else the usual one of the code. None for OK and for failures of the server.
std::optional<Rejection> RejectionOf(const absl::Status& status);

// The label of a reason in metrics and in the log: "queue_full".
const char* RejectionName(Rejection reason);
// Why a call was refused, of a closed set: the name of its Rejection; "unauthenticated"; "not_served" if there is no
// such method or path; "failed" if the server failed.
const char* RefusalReason(const absl::Status& status);
// The message of the status if it tells of the server alone, so that the log may show it: a failure of the server
// (INTERNAL), or a refusal that says when to come again. Empty for others: they quote what the client sent.
std::string LogTextOf(const absl::Status& status);

// UNAVAILABLE with RetryInfo: the answer during a drain.
absl::Status ShuttingDown();

// google.rpc.Status for the wire, with RetryInfo and, where the status names a field (base/field_error.h), BadRequest
// as details; empty where it has none of these.
std::string EncodeStatus(const absl::Status& status);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_STATUS_DETAILS_H_
