// From ClientOptions to a gRPC channel. Internal to the library.
#ifndef EDGEWISE_CLIENT_CHANNEL_H_
#define EDGEWISE_CLIENT_CHANNEL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "edgewise/client/client.h"

namespace edgewise::internal {

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const ClientOptions& options);

// Deadline, token and wait_for_ready of one call.
void PrepareContext(const ClientOptions& options, absl::Duration timeout, grpc::ClientContext& context);

// Code, message and details as the server sent them.
absl::Status ToAbslStatus(const grpc::Status& status);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_CHANNEL_H_
