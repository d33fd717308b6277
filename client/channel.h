// From ClientOptions to a gRPC channel. Internal to the library.
#ifndef EDGEWISE_CLIENT_CHANNEL_H_
#define EDGEWISE_CLIENT_CHANNEL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/address.h"
#include "edgewise/client/client.h"

namespace edgewise::internal {

// Makes the channels of one client: the one of its address, and those of single servers. Thread-safe.
class Channels {
 public:
  // Reads the files that the options name. InvalidArgument; NotFound for a file that cannot be read; Unavailable for a
  // host that is not known.
  static absl::StatusOr<Channels> Create(const ClientOptions& options);

  const Address& address() const { return address_; }
  // To all servers. Several get calls in turn, but for those that are not healthy.
  std::shared_ptr<grpc::Channel> ToAll() const;
  // To one, which gets every call once.
  std::shared_ptr<grpc::Channel> ToServer(const ServerAddress& server) const;
  // Deadline, token and wait_for_ready of one call.
  void PrepareContext(absl::Duration timeout, grpc::ClientContext& context) const;

 private:
  grpc::ChannelArguments Arguments() const;

  ClientOptions options_;
  Address address_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  bool token_in_credentials_ = false;
};

// Code, message and details as the server sent them.
absl::Status ToAbslStatus(const grpc::Status& status);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_CHANNEL_H_
