#include "server/rpc/auth.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/address.h"

namespace edgewise::server {
namespace {

constexpr char kBearer[] = "Bearer ";
constexpr unsigned kTlsSeconds = 1;  // between two looks at the files of TLS
constexpr size_t kMinToken = 16, kMaxToken = 1024;
constexpr size_t kNameBytes = 8;          // of a token's digest: enough to tell tokens apart
constexpr uintmax_t kMaxFile = 16 << 20;  // bytes of tokens or certificates

Digest Sha256(const std::string& text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, const char* flag) {
  // A FIFO would wait for a writer, and a device never end.
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > kMaxFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", path, ": has ", bytes, " bytes; at most ", kMaxFile, " are allowed"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) return absl::NotFoundError(absl::StrCat(flag, " ", path, ": cannot be read, or is empty"));
  return text;
}

int NoPassword(char*, int, int, void*) { return 0; }

// The certificate can be read, is in its time, and the key is its own.
absl::Status CheckPair(const std::string& certificate, const std::string& key) {
  using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
  const Bio certificate_bytes(BIO_new_mem_buf(certificate.data(), static_cast<int>(certificate.size())), BIO_free);
  const Bio key_bytes(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> parsed(
      PEM_read_bio_X509(certificate_bytes.get(), nullptr, NoPassword, nullptr), X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> parsed_key(
      PEM_read_bio_PrivateKey(key_bytes.get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  absl::Status status;
  if (!parsed) {
    status = absl::InvalidArgumentError("--tls_certificate: not a certificate in PEM form");
  } else if (!parsed_key) {
    status = absl::InvalidArgumentError("--tls_key: not a private key in PEM form without a password");
  } else if (X509_check_private_key(parsed.get(), parsed_key.get()) != 1) {
    status = absl::InvalidArgumentError("--tls_key is not the key of --tls_certificate");
  } else if (X509_cmp_current_time(X509_get0_notAfter(parsed.get())) <= 0) {
    status = absl::InvalidArgumentError("--tls_certificate has expired");
  } else if (X509_cmp_current_time(X509_get0_notBefore(parsed.get())) > 0) {
    status = absl::InvalidArgumentError("--tls_certificate is not valid yet");
  }
  ERR_clear_error();
  return status;
}

// One certificate or more, and nothing broken behind them.
absl::Status CheckClientCa(const std::string& certificates) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bytes(
      BIO_new_mem_buf(certificates.data(), static_cast<int>(certificates.size())), BIO_free);
  size_t found = 0;
  while (X509* certificate = PEM_read_bio_X509(bytes.get(), nullptr, NoPassword, nullptr)) {
    X509_free(certificate);
    ++found;
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (found > 0 && at_end) return absl::OkStatus();
  return absl::InvalidArgumentError("--tls_client_ca: not certificates in PEM form");
}

absl::string_view ViewOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

constexpr char kShuttingDown[] = "the server is shutting down";

class GateProcessor final : public grpc::AuthMetadataProcessor {
 public:
  explicit GateProcessor(std::shared_ptr<const Gate> gate) : gate_(std::move(gate)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    gate_->CountCall(path == metadata.end() ? "" : absl::string_view(path->second.data(), path->second.size()));
    if (gate_->closed()) return {grpc::StatusCode::UNAVAILABLE, kShuttingDown};
    const std::shared_ptr<const TokenSet> tokens = gate_->tokens();
    if (!tokens) return grpc::Status::OK;
    const auto [begin, end] = metadata.equal_range("authorization");
    if (begin == end) return {grpc::StatusCode::UNAUTHENTICATED, "authorization is missing; send \"Bearer <token>\""};
    if (std::next(begin) != end) return {grpc::StatusCode::UNAUTHENTICATED, "authorization is given more than once"};
    const std::string value(begin->second.data(), begin->second.size());
    if (!tokens->Find(value)) return {grpc::StatusCode::UNAUTHENTICATED, "authorization does not hold a known token"};
    return grpc::Status::OK;  // the header stays with the call, for PrincipalOf
  }

 private:
  const std::shared_ptr<const Gate> gate_;
};

// Plain text with a gate: gRPC's own have none.
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(std::shared_ptr<const Gate> gate) : gate_(std::move(gate)) {
    const auto process = [](void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                            grpc_process_auth_metadata_done_cb done, void* call) {
      const auto path = std::find_if(metadata, metadata + count, [](const grpc_metadata& entry) {
        return grpc_slice_str_cmp(entry.key, ":path") == 0;
      });
      static_cast<const Gate*>(state)->CountCall(path == metadata + count ? "" : ViewOf(path->value));
      const bool closed = static_cast<const Gate*>(state)->closed();
      done(call, nullptr, 0, nullptr, 0, closed ? GRPC_STATUS_UNAVAILABLE : GRPC_STATUS_OK,
           closed ? kShuttingDown : nullptr);
    };
    grpc_server_credentials_set_auth_metadata_processor(credentials_,
                                                        {process, [](void*) {}, const_cast<Gate*>(gate_.get())});
  }
  ~PlainCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }
  bool IsInsecure() const override { return true; }

  const std::shared_ptr<const Gate> gate_;
  grpc_server_credentials* const credentials_ = grpc_insecure_server_credentials_create();
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
  absl::StatusOr<std::string> text = ReadFile(file, "--auth_token_file");
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
  const bool bearer = authorization.compare(0, sizeof kBearer - 1, kBearer) == 0;
  const Digest digest = Sha256(bearer ? authorization.substr(sizeof kBearer - 1) : authorization);
  const Principal* known = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) known = &entry.principal;
  }
  return bearer ? known : nullptr;
}

void Gate::Count(std::atomic<uint64_t>& calls, absl::string_view path) const {
  if (reflection_ && path == "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") return;
  calls.fetch_add(1, std::memory_order_relaxed);
}

absl::Status Gate::ReadTokens(const std::string& file) {
  absl::StatusOr<TokenSet> tokens = TokenSet::Read(file);
  if (!tokens.ok()) return tokens.status();
  const absl::MutexLock lock(&mutex_);
  tokens_ = std::make_shared<const TokenSet>(*std::move(tokens));
  return absl::OkStatus();
}

std::shared_ptr<const TokenSet> Gate::tokens() const {
  const absl::MutexLock lock(&mutex_);
  return tokens_;
}

bool FileWatch::Changed() {
  struct stat info;
  if (stat(path_.c_str(), &info) != 0) return false;
  const std::array<int64_t, 4> now = {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
                                      info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec};
  return std::exchange(seen_, now) != now;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(const ServerOptions& options,
                                                                         std::shared_ptr<Gate> gate) {
  const SecurityOptions& security = options.security;
  const bool tls = !security.tls_certificate.empty();
  const bool loopback = IsLoopback(options.listen);
  if (tls != !security.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_certificate and --tls_key belong together: give both or none");
  }
  if (!tls && !security.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca needs --tls_certificate and --tls_key");
  }
  if (!tls && !loopback && !security.insecure_bind) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", options.listen,
                     " is not a loopback address: give --tls_certificate and --tls_key, or --insecure_bind"));
  }
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (tls) {
    absl::StatusOr<std::string> key = ReadFile(security.tls_key, "--tls_key");
    if (!key.ok()) return key.status();
    absl::StatusOr<std::string> certificate = ReadFile(security.tls_certificate, "--tls_certificate");
    if (!certificate.ok()) return certificate.status();
    if (absl::Status pair = CheckPair(*certificate, *key); !pair.ok()) return pair;
    if (!security.tls_client_ca.empty()) {
      absl::StatusOr<std::string> ca = ReadFile(security.tls_client_ca, "--tls_client_ca");
      if (!ca.ok()) return ca.status();
      if (absl::Status status = CheckClientCa(*ca); !status.ok()) return status;
    }
    grpc::experimental::TlsServerCredentialsOptions ssl(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(security.tls_key, security.tls_certificate,
                                                                             security.tls_client_ca, kTlsSeconds));
    ssl.watch_identity_key_cert_pairs();
    ssl.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    if (!security.tls_client_ca.empty()) {
      ssl.watch_root_certs();
      ssl.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    }
    credentials = grpc::experimental::TlsServerCredentials(ssl);
  } else if (security.auth_token_file.empty()) {
    return std::make_shared<PlainCredentials>(std::move(gate));
  } else {
    if (!loopback) {
      return absl::InvalidArgumentError(
          absl::StrCat("--auth_token_file with --listen=", options.listen,
                       " needs --tls_certificate: a token sent in the clear is no secret"));
    }
    // Plain text that takes loopback peers only.
    credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  }
  if (!security.auth_token_file.empty()) {
    if (absl::Status tokens = gate->ReadTokens(security.auth_token_file); !tokens.ok()) return tokens;
  }
  credentials->SetAuthMetadataProcessor(std::make_shared<GateProcessor>(std::move(gate)));
  return credentials;
}

}  // namespace edgewise::server
