#include "client/channel.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
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

// gRPC aborts the process on a header that HTTP/2 forbids, so such a token must not get that far.
absl::Status CheckToken(const ClientOptions& options, bool local) {
  for (unsigned char c : options.bearer_token) {
    if (c <= 0x20 || c >= 0x7f) {
      return absl::InvalidArgumentError("bearer_token holds a character that is not printable ASCII");
    }
  }
  if (!options.bearer_token.empty() && !options.tls && !options.allow_plain_token && !local) {
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

// Several servers take calls in turn. A request whose server goes away is sent again, to another; what is asked for can
// be computed twice. A token bucket ends that where most calls fail. The service "" is a server as a whole.
std::string ServiceConfig(bool health_checks) {
  return absl::StrCat(R"({"loadBalancingConfig": [{"round_robin": {}}],)",
                      health_checks ? R"("healthCheckConfig": {"serviceName": ""},)" : "",
                      R"("methodConfig": [{"name": [{"service": "edgewise.v1.InferenceService"}], "retryPolicy": {
      "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]}}],
      "retryThrottling": {"maxTokens": 1000, "tokenRatio": 1}})");
}

// The name that the certificates of all servers must have, where gRPC does not know it from the target.
absl::Status CheckServerName(const ClientOptions& options, const Address& address) {
  if (!options.tls || !options.tls->server_name.empty()) return absl::OkStatus();
  for (const ServerAddress& server : address.servers) {
    if (server.host == address.servers[0].host) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tls.server_name is empty; expected the name that the certificates of all servers have, since ",
                     "address has several hosts (", address.servers[0].host, ", ", server.host, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Channels> Channels::Create(const ClientOptions& options) {
  constexpr size_t kLargestMessage = 0x7fffffff;  // gRPC's own limit: the size is an int
  if (options.max_message_bytes == 0 || options.max_message_bytes > kLargestMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", options.max_message_bytes, "; expected 1 to ", kLargestMessage));
  }
  Channels channels;
  channels.options_ = options;
  absl::StatusOr<Address> address = ParseAddress(options.address);
  if (!address.ok()) return address.status();
  channels.address_ = *std::move(address);
  absl::Status status = CheckToken(options, channels.address_.local);
  status.Update(CheckServerName(options, channels.address_));
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = CreateCredentials(options);
  if (!credentials.ok()) return credentials.status();
  channels.credentials_ = *std::move(credentials);
  // So that gRPC's own health checks have it.
  if (channels.address_.balanced && options.tls && !options.bearer_token.empty()) {
    channels.credentials_ =
        grpc::CompositeChannelCredentials(channels.credentials_, grpc::AccessTokenCredentials(options.bearer_token));
    channels.token_in_credentials_ = true;
  }
  return channels;
}

grpc::ChannelArguments Channels::Arguments() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);  // a restarted server is found again soon
  if (options_.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (address_.local) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

std::shared_ptr<grpc::Channel> Channels::ToAll() const {
  grpc::ChannelArguments arguments = Arguments();
  std::string name = options_.tls ? options_.tls->server_name : "";
  if (address_.balanced) {
    // On plain text there are no credentials, and no server that wants a token answers the checks.
    arguments.SetServiceConfigJSON(ServiceConfig(options_.bearer_token.empty() || token_in_credentials_));
    arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, static_cast<int>(options_.max_message_bytes));
    arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);  // replicas come and go by the second
    if (options_.tls && name.empty()) name = address_.servers[0].host;
    if (!options_.tls && !address_.authority.empty())
      arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, address_.authority);
  }
  if (!name.empty()) arguments.SetSslTargetNameOverride(name);
  return grpc::CreateCustomChannel(address_.target, credentials_, arguments);
}

std::shared_ptr<grpc::Channel> Channels::ToServer(const ServerAddress& server) const {
  grpc::ChannelArguments arguments = Arguments();
  if (options_.tls) {
    const std::string& name = options_.tls->server_name.empty() ? server.host : options_.tls->server_name;
    if (!name.empty()) arguments.SetSslTargetNameOverride(name);
  }
  return grpc::CreateCustomChannel(server.target, credentials_, arguments);
}

void Channels::PrepareContext(absl::Duration timeout, grpc::ClientContext& context) const {
  // Beyond a year a deadline is none; it also keeps the sum from overflowing.
  if (timeout < absl::Hours(24 * 365)) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (!options_.bearer_token.empty() && !token_in_credentials_) {
    context.AddMetadata("authorization", "Bearer " + options_.bearer_token);
  }
  context.set_wait_for_ready(options_.wait_for_ready);
}

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kStatusDetailsUrl, absl::Cord(status.error_details()));
  return result;
}

}  // namespace edgewise::internal
