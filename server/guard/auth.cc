#include "server/guard/auth.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "server/base/address.h"
#include "server/base/status_details.h"
#include "server/guard/secret_file.h"

namespace edgewise::server {
namespace {

constexpr char kBearer[] = "Bearer ";
constexpr size_t kMinToken = 16, kMaxToken = 1024;
constexpr size_t kNameBytes = 8;  // of a token's digest: enough to tell tokens apart

Digest Sha256(const std::string& text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

// RESOURCE_EXHAUSTED: there is more than kMaxMetadata, as HTTP/2 counts it (RFC 9113, 6.5.2).
absl::Status CheckMetadata(absl::Span<const grpc_metadata> metadata) {
  size_t bytes = 0;
  for (const grpc_metadata& field : metadata) {
    bytes += GRPC_SLICE_LENGTH(field.key) + GRPC_SLICE_LENGTH(field.value) + 32;
  }
  if (bytes <= kMaxMetadata) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the metadata of the call has ", bytes, " bytes; the server takes at most ", kMaxMetadata));
}

// The first value of a property; null: it has none.
const grpc_auth_property* FindProperty(const grpc_auth_context* connection, const char* name) {
  grpc_auth_property_iterator values = grpc_auth_context_find_properties_by_name(connection, name);
  return grpc_auth_property_iterator_next(&values);
}

// gRPC's TLS resumes a session whatever the time of the client's certificate.
absl::Status CheckResumed(const grpc_auth_context* connection) {
  const grpc_auth_property* resumed = FindProperty(connection, GRPC_SSL_SESSION_REUSED_PROPERTY);
  if (resumed == nullptr || absl::string_view(resumed->value, resumed->value_length) != "true") return absl::OkStatus();
  const grpc_auth_property* pem = FindProperty(connection, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pem == nullptr || !HasExpired({pem->value, pem->value_length})) return absl::OkStatus();
  return absl::UnauthenticatedError("the client's certificate has expired since the TLS session began; connect anew");
}

// Credentials of gRPC's core with the gate.
class GatedCredentials final : public grpc::ServerCredentials {
 public:
  // Null `certificates`: plain text. `local`: which takes loopback peers only.
  GatedCredentials(std::shared_ptr<const Gate> gate, std::shared_ptr<Certificates> certificates, bool local)
      : gate_(std::move(gate)),
        certificates_(std::move(certificates)),
        credentials_(certificates_ != nullptr ? certificates_->MakeCredentials()
                     : local                  ? grpc_local_server_credentials_create(LOCAL_TCP)
                                              : grpc_insecure_server_credentials_create()) {
    grpc_server_credentials_set_auth_metadata_processor(credentials_,
                                                        {Process, [](void*) {}, const_cast<Gate*>(gate_.get())});
  }
  ~GatedCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // gRPC asks it for each call, before the method is looked up; a server that shuts down gives no call to a method. The
  // token is looked at when the call begins (PrincipalOf). `state`: the gate.
  static void Process(void* state, grpc_auth_context* connection, const grpc_metadata* metadata, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* call) {
    const Gate& gate = *static_cast<const Gate*>(state);
    gate.counts.come.fetch_add(1, std::memory_order_relaxed);
    absl::Status status = gate.closed() ? ShuttingDown() : CheckMetadata(absl::MakeConstSpan(metadata, count));
    status.Update(CheckResumed(connection));
    if (!status.ok() && gate.log != nullptr) {
      Call refused;  // neither its method nor its peer is told here
      refused.arrival = gate.log->now();
      gate.log->End(refused, status);
    }
    done(call, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
         status.ok() ? nullptr : std::string(status.message()).c_str());
  }

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  const std::shared_ptr<const Gate> gate_;
  const std::shared_ptr<Certificates> certificates_;
  grpc_server_credentials* const credentials_;
};

// Cuts " priority=N" off the line.
absl::Status TakePriority(std::string& line, uint32_t& priority) {
  const size_t space = line.find(' ');
  if (space == std::string::npos) return absl::OkStatus();
  const std::string rest = line.substr(space);
  line.resize(space);
  for (uint32_t level = 1; level <= kPriorityLevels; ++level) {
    if (rest != absl::StrCat(" priority=", level)) continue;
    priority = level;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--auth_token_file: a token is followed by \"",
                                                 absl::CHexEscape(rest.substr(0, 32)),
                                                 "\"; allowed is \" priority=N\" with 1 to ", kPriorityLevels));
}

}  // namespace

absl::StatusOr<TokenSet> TokenSet::Read(const std::string& file) {
  absl::StatusOr<std::string> text = ReadSecretFile(file, "--auth_token_file");
  if (!text.ok()) return text.status();
  TokenSet tokens;
  for (size_t begin = 0; begin < text->size();) {
    size_t end = text->find('\n', begin);
    if (end == std::string::npos) end = text->size();
    std::string line = text->substr(begin, end - begin);
    begin = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    Principal principal;
    if (absl::Status priority = TakePriority(line, principal.highest_level); !priority.ok()) return priority;
    if (line.size() < kMinToken || line.size() > kMaxToken) {
      return absl::InvalidArgumentError(absl::StrCat("--auth_token_file: a token has ", line.size(),
                                                     " characters; allowed are ", kMinToken, " to ", kMaxToken));
    }
    const Digest digest = Sha256(line);
    principal.name = absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), kNameBytes});
    tokens.entries_.push_back({digest, std::move(principal)});
  }
  if (tokens.entries_.empty()) return absl::InvalidArgumentError("--auth_token_file: holds no token");
  return tokens;
}

const Principal* TokenSet::Find(const std::string& authorization) const {
  const bool bearer = absl::StartsWithIgnoreCase(authorization, kBearer);
  const Digest digest = Sha256(bearer ? authorization.substr(sizeof kBearer - 1) : authorization);
  const Principal* known = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) known = &entry.principal;
  }
  return bearer ? known : nullptr;
}

absl::Status Gate::ReadTokens(const std::string& file) {
  absl::StatusOr<TokenSet> tokens = TokenSet::Read(file);
  if (!tokens.ok()) return tokens.status();
  const absl::MutexLock lock(&mutex_);
  tokens_ = std::make_shared<const TokenSet>(*std::move(tokens));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Principal>> Gate::Admit(absl::Span<const absl::string_view> authorization) const {
  if (closed()) return ShuttingDown();
  const std::shared_ptr<const TokenSet> known = tokens();
  if (!known) return std::nullopt;
  if (authorization.empty()) return absl::UnauthenticatedError("authorization is missing; send \"Bearer <token>\"");
  if (authorization.size() > 1) return absl::UnauthenticatedError("authorization is given more than once");
  const Principal* principal = known->Find(std::string(authorization[0]));
  if (principal == nullptr) return absl::UnauthenticatedError("authorization does not hold a known token");
  return *principal;
}

std::shared_ptr<const TokenSet> Gate::tokens() const {
  const absl::MutexLock lock(&mutex_);
  return tokens_;
}

absl::Status CheckAddress(const std::string& flag, const std::string& address, const SecurityOptions& security) {
  if (!security.tls_certificate.empty() || IsLoopback(address)) return absl::OkStatus();
  if (!security.insecure_bind) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, "=", address, " is not a loopback address: give --tls_certificate and --tls_key, or --insecure_bind"));
  }
  if (security.auth_token_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--auth_token_file with ", flag, "=", address,
                                                 " needs --tls_certificate: a token sent in the clear is no secret"));
}

absl::StatusOr<Credentials> MakeCredentials(const ServerOptions& options, std::shared_ptr<Gate> gate) {
  const SecurityOptions& security = options.security;
  const bool tls = !security.tls_certificate.empty();
  if (tls != !security.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_certificate and --tls_key belong together: give both or none");
  }
  if (!tls && !security.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca needs --tls_certificate and --tls_key");
  }
  RETURN_IF_ERROR(CheckAddress("--listen", options.listen, security));
  if (!options.http_listen.empty()) RETURN_IF_ERROR(CheckAddress("--http_listen", options.http_listen, security));
  Credentials made;
  if (tls) {
    ASSIGN_OR_RETURN(made.certificates, Certificates::Read(security));
  }
  if (!security.auth_token_file.empty()) RETURN_IF_ERROR(gate->ReadTokens(security.auth_token_file));
  const bool local = !security.auth_token_file.empty();
  made.grpc = std::make_shared<GatedCredentials>(std::move(gate), made.certificates, local);
  return made;
}

}  // namespace edgewise::server
