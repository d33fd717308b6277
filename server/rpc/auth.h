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
#include "server/request.h"

namespace edgewise::server {

using Digest = std::array<uint8_t, 32>;

// Bearer tokens, kept as SHA-256 digests. Immutable; any thread.
class TokenSet {
 public:
  // One token per line, alone or followed by " priority=N": the highest level of its requests. Empty lines and lines
  // that start with # are skipped. INVALID_ARGUMENT: a token is shorter than 16 or longer than 1024 characters, other
  // words follow it, or the file has no token. NOT_FOUND: the file cannot be read.
  static absl::StatusOr<TokenSet> Read(const std::string& file);

  // The principal of a token; null: it is not known. `authorization`: the value of the header, "Bearer <token>". Wrong
  // tokens take as long as right ones.
  const Principal* Find(const std::string& authorization) const;

 private:
  struct Entry {
    Digest digest;
    Principal principal;
  };
  std::vector<Entry> entries_;
};

struct Security {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::shared_ptr<const TokenSet> tokens;  // null: no token is required
};

// For options.listen. INVALID_ARGUMENT: the options contradict each other; NOT_FOUND: a file cannot be read.
absl::StatusOr<Security> MakeSecurity(const ServerOptions& options);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_AUTH_H_
