#include "server/status_details.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "edgewise/status_details.pb.h"

namespace edgewise::server {
namespace {

constexpr int64_t kNanosPerSecond = 1000000000;

}  // namespace

void SetRetryDelay(absl::Status& status, double seconds) {
  const auto nanos = static_cast<int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e9);
  rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(nanos / kNanosPerSecond);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % kNanosPerSecond));
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
}

double RetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  rpc::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return -1.0;
  const rpc::RetryInfo::Duration& delay = retry.retry_delay();
  return static_cast<double>(delay.seconds()) + static_cast<double>(delay.nanos()) / kNanosPerSecond;
}

absl::Status ShuttingDown() {
  absl::Status status = absl::UnavailableError("the server is shutting down");
  SetRetryDelay(status, 1.0);
  return status;
}

absl::Status InvalidField(const std::string& field, const std::string& what) {
  return InvalidFieldMessage(field, absl::StrCat(field, " ", what));
}

absl::Status InvalidFieldMessage(const std::string& field, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  rpc::BadRequest bad_request;
  rpc::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
  violation->set_field(field);
  violation->set_description(message);
  status.SetPayload(kBadRequestUrl, absl::Cord(bad_request.SerializeAsString()));
  return status;
}

std::string EncodeStatus(const absl::Status& status) {
  rpc::Status encoded;
  status.ForEachPayload([&encoded](absl::string_view url, const absl::Cord& value) {
    rpc::Any* detail = encoded.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(value));
  });
  if (encoded.details().empty()) return "";
  encoded.set_code(static_cast<int32_t>(status.code()));
  encoded.set_message(std::string(status.message()));
  return encoded.SerializeAsString();
}

}  // namespace edgewise::server
