#include "server/base/status_details.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "base/field_error.h"
#include "edgewise/status_details.pb.h"

namespace edgewise::server {
namespace {

constexpr int64_t kNanosPerSecond = 1000000000;
constexpr char kRejectionUrl[] = "edgewise/rejection";
constexpr const char* kRejectionNames[] = {"queue_full", "deadline", "cancelled", "draining",
                                           "invalid",    "budget",   "oom",       "not_ready"};
constexpr std::pair<absl::StatusCode, Rejection> kUsualRejections[] = {
    {absl::StatusCode::kInvalidArgument, Rejection::kInvalid},
    {absl::StatusCode::kNotFound, Rejection::kInvalid},
    {absl::StatusCode::kResourceExhausted, Rejection::kInvalid},
    {absl::StatusCode::kFailedPrecondition, Rejection::kNotReady},
    {absl::StatusCode::kUnavailable, Rejection::kNotReady},
    {absl::StatusCode::kDeadlineExceeded, Rejection::kDeadline},
    {absl::StatusCode::kCancelled, Rejection::kCancelled}};

}  // namespace

void SetRetryDelay(absl::Status& status, double seconds) {
  const auto nanos = static_cast<int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e9);
  rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(nanos / kNanosPerSecond);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % kNanosPerSecond));
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
}

std::optional<double> RetryDelayOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  rpc::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return std::nullopt;
  return static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
}

absl::Status WithRejection(absl::Status status, Rejection reason) {
  status.SetPayload(kRejectionUrl, absl::Cord(std::string(1, static_cast<char>(reason))));
  return status;
}

std::optional<Rejection> RejectionOf(const absl::Status& status) {
  if (const absl::optional<absl::Cord> reason = status.GetPayload(kRejectionUrl)) {
    return static_cast<Rejection>((*reason)[0]);
  }
  for (const auto& [code, reason] : kUsualRejections) {
    if (status.code() == code) return reason;
  }
  return std::nullopt;
}

const char* RejectionName(Rejection reason) { return kRejectionNames[static_cast<size_t>(reason)]; }

const char* RefusalReason(const absl::Status& status) {
  if (const std::optional<Rejection> reason = RejectionOf(status)) return RejectionName(*reason);
  if (absl::IsUnauthenticated(status)) return "unauthenticated";
  return absl::IsUnimplemented(status) ? "not_served" : "failed";
}

std::string LogTextOf(const absl::Status& status) {
  const bool tells_of_server = absl::IsInternal(status) || status.GetPayload(kRetryInfoUrl).has_value();
  return tells_of_server ? std::string(status.message()) : "";
}

absl::Status ShuttingDown() {
  absl::Status status = absl::UnavailableError("the server is shutting down");
  SetRetryDelay(status, 1.0);
  return WithRejection(std::move(status), Rejection::kDraining);
}

std::string EncodeStatus(const absl::Status& status) {
  rpc::Status encoded;
  const auto add = [&encoded](const char* url, std::string bytes) {
    rpc::Any* detail = encoded.add_details();
    detail->set_type_url(url);
    detail->set_value(std::move(bytes));
  };
  const std::string message(status.message());
  if (const std::string field = FieldOf(status); !field.empty()) {
    rpc::BadRequest bad_request;
    rpc::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(field);
    violation->set_description(message);
    add(kBadRequestUrl, bad_request.SerializeAsString());
  }
  if (const absl::optional<absl::Cord> retry = status.GetPayload(kRetryInfoUrl)) {
    add(kRetryInfoUrl, std::string(*retry));
  }
  if (encoded.details().empty()) return "";
  encoded.set_code(static_cast<int32_t>(status.code()));
  encoded.set_message(message);
  return encoded.SerializeAsString();
}

}  // namespace edgewise::server
