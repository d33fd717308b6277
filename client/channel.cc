#include "client/channel.h"

#include <arpa/inet.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace edgewise::internal {
namespace {

absl::StatusOr<std::string> ReadPem(const char* option, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || bytes.empty()) return absl::NotFoundError(absl::StrCat(option, ": cannot read \"", path, "\""));
  return bytes;
}

// A socket file, an IPv4 address in 127/8, ::1 or localhost; a name that only begins like one is not.
bool IsLocal(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr ipv4;
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

// gRPC aborts the process on a header that HTTP/2 forbids, so such a token must not get that far.
absl::Status CheckToken(const ClientOptions& options) {
  for (unsigned char c : options.bearer_token) {
    if (c <= 0x20 || c >= 0x7f) {
      return absl::InvalidArgumentError("bearer_token holds a character that is not printable ASCII");
    }
  }
  if (!options.bearer_token.empty() && !options.tls && !options.allow_plain_token && !IsLocal(options.address)) {
    return absl::InvalidArgumentError(absl::StrCat("bearer_token would travel unencrypted to ", options.address,
                                                   "; use TLS, or set allow_plain_token"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CreateCredentials(const ClientOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  if (options.tls->cert_file.empty() != options.tls->key_file.empty()) {
    return absl::InvalidArgumentError("tls: cert_file and key_file go together");
  }
  absl::StatusOr<std::string> ca = ReadPem("tls.ca_file", options.tls->ca_file);
  if (!ca.ok()) return ca.status();
  absl::StatusOr<std::string> cert = ReadPem("tls.cert_file", options.tls->cert_file);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadPem("tls.key_file", options.tls->key_file);
  if (!key.ok()) return key.status();
  return grpc::SslCredentials({.pem_root_certs = *ca, .pem_private_key = *key, .pem_cert_chain = *cert});
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const ClientOptions& options) {
  if (options.address.empty()) return absl::InvalidArgumentError("address is empty; expected HOST:PORT");
  constexpr size_t kLargestMessage = 0x7fffffff;  // gRPC's own limit: the size is an int
  if (options.max_message_bytes == 0 || options.max_message_bytes > kLargestMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", options.max_message_bytes, "; expected 1 to ", kLargestMessage));
  }
  if (absl::Status status = CheckToken(options); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = CreateCredentials(options);
  if (!credentials.ok()) return credentials.status();

  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);  // a restarted server is found again soon
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (IsLocal(options.address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.tls && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return grpc::CreateCustomChannel(options.address, *credentials, arguments);
}

void PrepareContext(const ClientOptions& options, absl::Duration timeout, grpc::ClientContext& context) {
  // Beyond a year a deadline is none; it also keeps the sum from overflowing.
  if (timeout < absl::Hours(24 * 365)) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (!options.bearer_token.empty()) context.AddMetadata("authorization", "Bearer " + options.bearer_token);
  context.set_wait_for_ready(options.wait_for_ready);
}

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kStatusDetailsUrl, absl::Cord(status.error_details()));
  return result;
}

}  // namespace edgewise::internal
