// The error that a client gets when the model or the device failed.
#ifndef EDGEWISE_SERVER_SCHEDULE_DEVICE_FAILURE_H_
#define EDGEWISE_SERVER_SCHEDULE_DEVICE_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "server/base/status_details.h"
#include "server/observe/log.h"

namespace edgewise::server {

// RESOURCE_EXHAUSTED stays, others become INTERNAL. The cause is only logged.
inline absl::Status DeviceFailure(const absl::Status& status) {
  Log(LogLevel::kError, "device failed",
      {{"code", absl::StatusCodeToString(status.code())}, {"error", std::string(status.message())}});
  if (absl::IsResourceExhausted(status)) {
    return WithRejection(absl::ResourceExhaustedError("out of device memory"), Rejection::kOutOfMemory);
  }
  return absl::InternalError("the device failed while computing; the server's log says how");
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_DEVICE_FAILURE_H_
