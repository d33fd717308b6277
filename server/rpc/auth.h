// Authentication of clients. Every call passes it before its method is looked up, health and reflection included.
#ifndef EDGEWISE_SERVER_RPC_AUTH_H_
#define EDGEWISE_SERVER_RPC_AUTH_H_

#include <grpcpp/security/server_credentials.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/options.h"

namespace edgewise::server {

using Digest = std::array<uint8_t, 32>;

// Bearer tokens, kept as SHA-256 digests. Immutable; any thread.
class TokenSet {
 public:
  // One token per line; empty lines and lines that start with # are skipped. INVALID_ARGUMENT: a token is shorter than
  // 16 or longer than 1024 characters, or the file has none. NOT_FOUND: the file cannot be read.
  static absl::StatusOr<TokenSet> Read(const std::string& file);

  // `authorization`: the value of the header, "Bearer <token>". Wrong tokens take as long as right ones.
  bool Allows(const std::string& authorization) const;

 private:
  std::vector<Digest> digests_;
};

// Credentials for options.listen. INVALID_ARGUMENT: the options contradict each other; NOT_FOUND: a file cannot be
// read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(const ServerOptions& options);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_AUTH_H_
