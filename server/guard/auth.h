// The gate that every call passes before its method has it, health and reflection included: it turns calls away during
// a drain, and clients without a token.
#ifndef EDGEWISE_SERVER_GUARD_AUTH_H_
#define EDGEWISE_SERVER_GUARD_AUTH_H_

#include <grpcpp/security/server_credentials.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/base/options.h"
#include "server/guard/certificates.h"
#include "server/observe/call_log.h"
#include "server/request/request.h"

namespace edgewise::server {

using Digest = std::array<uint8_t, 32>;

// The most metadata of a call, in bytes. gRPC's own limit, above which it closes the connection, is twice this.
inline constexpr size_t kMaxMetadata = 8192;

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

// How calls of gRPC, and requests of HTTP, fare before their method has them. Any thread.
struct CallCounts {
  std::atomic<uint64_t> come = 0;       // to the gate, whether they pass or not
  std::atomic<uint64_t> begun = 0;      // gRPC has handed them over to their method; not those given up before that
  std::atomic<uint64_t> late = 0;       // refused since they were read late
  std::atomic<uint64_t> abandoned = 0;  // their client gave them up before their message was whole
};

// Any thread.
class Gate {
 public:
  // Calls need one of the tokens from now on. Errors: TokenSet::Read, and what was before stays.
  absl::Status ReadTokens(const std::string& file);
  // The principal of a call with these values of the header `authorization`; none where no token is needed.
  // UNAVAILABLE: the gate is closed. UNAUTHENTICATED: they hold no token, or none that is known.
  absl::StatusOr<std::optional<Principal>> Admit(absl::Span<const absl::string_view> authorization) const;
  // Turns every call away from now on.
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // Null: no token is needed.
  std::shared_ptr<const TokenSet> tokens() const;

  mutable CallCounts counts;
  CallLog* log = nullptr;  // of the calls that find the gate closed; set before any comes

 private:
  std::atomic<bool> closed_ = false;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TokenSet> tokens_ ABSL_GUARDED_BY(mutex_);
};

struct Credentials {
  std::shared_ptr<grpc::ServerCredentials> grpc;
  std::shared_ptr<Certificates> certificates;  // that new connections of `grpc` get; null: plain text
};

// INVALID_ARGUMENT: a port at this address would be open, or read tokens in the clear, without a word of the operator.
absl::Status CheckAddress(const std::string& flag, const std::string& address, const SecurityOptions& security);

// Credentials for options.listen; checks options.http_listen too. They read the tokens into the gate and keep it.
// INVALID_ARGUMENT: the options contradict each other, or Certificates::Read; NOT_FOUND: a file cannot be read.
absl::StatusOr<Credentials> MakeCredentials(const ServerOptions& options,
                                            std::shared_ptr<Gate> gate = std::make_shared<Gate>());

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_AUTH_H_
