// The delay that SetRetryDelay added to a status, in seconds; < 0: none.
#ifndef EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_
#define EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "edgewise/status_details.pb.h"
#include "server/base/status_details.h"

namespace edgewise::server {

inline double RetryDelay(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryInfoUrl);
  rpc::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return -1.0;
  return static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_RETRY_DELAY_H_
