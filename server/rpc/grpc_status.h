// Conversions between the types of gRPC and those of the server.
#ifndef EDGEWISE_SERVER_RPC_GRPC_STATUS_H_
#define EDGEWISE_SERVER_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "server/request.h"
#include "server/status_details.h"

namespace edgewise::server {

// Status codes have the same numbers. Payloads become error details (EncodeStatus); a message is cut at 1 KiB.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > 1024) message = message.substr(0, 1021) + "...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, EncodeStatus(status));
}

// Converts a wall-clock deadline to the clock of `now`. A deadline more than a year ahead becomes Time::max().
inline Time ToSteady(std::chrono::system_clock::time_point deadline, Time now) {
  const auto left = deadline - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) return Time::max();
  return now + std::chrono::duration_cast<Clock::duration>(left);
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_GRPC_STATUS_H_
