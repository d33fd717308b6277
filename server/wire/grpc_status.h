// Conversions between the types of gRPC and those of the server.
#ifndef EDGEWISE_SERVER_WIRE_GRPC_STATUS_H_
#define EDGEWISE_SERVER_WIRE_GRPC_STATUS_H_

#include <grpc/support/time.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/status_details.h"
#include "server/request/request.h"

namespace edgewise::server {

// Status codes have the same numbers. Payloads become error details (EncodeStatus); a message is cut at 1 KiB.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > 1024) message = message.substr(0, 1021) + "...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, EncodeStatus(status));
}

// Converts a deadline (grpc::ServerContextBase::raw_deadline) to the clock of `now`. A deadline more than a year ahead
// becomes Time::max(): `grpc-timeout: 99999999H` is beyond what std::chrono's nanoseconds hold.
inline Time ToSteady(gpr_timespec deadline, Time now) {
  constexpr int64_t kYear = 365 * 24 * 3600;
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec > kYear) return Time::max();
  return now + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_GRPC_STATUS_H_
