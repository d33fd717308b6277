#include "client/cli/request/connection.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace edgewise::cli {
void ConnectionFlags::Register(FlagSet& flags) {
  if (const char* set = std::getenv("EDGEWISE_SERVER"); set != nullptr && *set != '\0') server = set;
  flags.Section("Connection");
  flags.Add(
      "server", "HOST[:PORT],...",
      "where the server listens; several, or dns:///NAME:PORT, get calls in turn; EDGEWISE_SERVER in the environment "
      "sets the default",
      &server);
  flags.Add("timeout", "DURATION", "of each call, as 500ms, 5s or inf", &timeout);
  flags.AddSwitch("wait_for_ready", "wait for the server, up to the timeout, where it cannot be reached",
                  &wait_for_ready);
  flags.AddSwitch("tls", "encrypt, trusting the system's roots; implied by the other --tls_ flags", &tls);
  flags.Add("tls_ca_file", "PEM", "who may sign the server's certificate", &tls_ca_file);
  flags.Add("tls_cert_file", "PEM", "our certificate, for mutual TLS", &tls_cert_file);
  flags.Add("tls_key_file", "PEM", "our private key, for mutual TLS", &tls_key_file);
  flags.Add("tls_server_name", "NAME", "the name to expect in the server's certificate", &tls_server_name);
  flags.Add("token_file", "FILE", "holds the bearer token to send", &token_file);
  flags.AddSwitch("allow_plain_token", "send the token to another machine without TLS", &allow_plain_token);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectionFlags::Connect(bool own_connection) const {
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout is ", absl::FormatDuration(timeout), "; expected > 0"));
  }
  if (absl::StrContains(server, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--server is \"", server, "\"; expected HOST:PORT with --tls or --tls_ca_file=PEM"));
  }
  ClientOptions options;
  options.address = absl::StrReplaceAll(absl::StripSuffix(server, "/"), {{"http://", ""}, {"/,", ","}});
  options.timeout = timeout;
  options.wait_for_ready = wait_for_ready;
  options.allow_plain_token = allow_plain_token;
  options.own_connection = own_connection;
  if (encrypted()) {
    options.tls = TlsOptions{tls_ca_file, tls_cert_file, tls_key_file, tls_server_name};
  }
  if (!token_file.empty()) {
    std::ifstream file(token_file);
    options.bearer_token.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    absl::StripAsciiWhitespace(&options.bearer_token);
    if (!file || options.bearer_token.empty()) {
      return absl::NotFoundError(absl::StrCat("--token_file: cannot read a token from \"", token_file, "\""));
    }
  }
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  if (client.ok() || !absl::StartsWith(client.status().message(), "address ")) return client;
  return absl::Status(client.status().code(),
                      absl::StrCat("--server is \"", server, "\": ", client.status().message()));
}

bool ConnectionFlags::encrypted() const {
  return tls || !tls_ca_file.empty() || !tls_cert_file.empty() || !tls_key_file.empty() || !tls_server_name.empty();
}

std::string ConnectionFlags::Hint(const absl::Status& status) const {
  if (status.code() != absl::StatusCode::kUnavailable) return "";
  const std::string message(status.message());
  auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
  if (says("wrong version number")) {
    return absl::StrCat("The server at ", server, " does not speak TLS: leave out --tls and the flags --tls_....");
  }
  if (says("certificate verify failed")) {
    return "Nobody who is trusted here signed the server's certificate: --tls_ca_file=PEM names who did.";
  }
  if (says("is not in peer certificate")) {
    return "The server's certificate is for another name: --tls_server_name=NAME gives the name to expect.";
  }
  if (says("health check") || says("unhealthy")) {
    return absl::StrCat("No server at ", server, " says that it is healthy: models may be loading, or it may want a ",
                        "token: --token_file=FILE.");
  }
  if (says("http1.x server")) {
    return absl::StrCat("An HTTP server answers at ", server,
                        ", such as that of /metrics; --server=HOST:PORT names the ", "gRPC port, 8001 by default.");
  }
  if (!says("failed to connect") && !says("DNS resolution failed")) return "";  // the server itself said it
  if (says("Socket closed") || says("Connection reset")) {
    if (!encrypted()) {
      return absl::StrCat("The server at ", server, " hung up. It may want TLS: --tls_ca_file=PEM (or --tls); and a ",
                          "client certificate: --tls_cert_file=PEM, --tls_key_file=PEM.");
    }
    return absl::StrCat("The server at ", server, " hung up. ",
                        tls_cert_file.empty()
                            ? "It may want a client certificate: --tls_cert_file=PEM, --tls_key_file=PEM."
                            : "It may not trust who signed the certificate of --tls_cert_file.");
  }
  return absl::StrCat("Is edgewise-server running at ", server, "? --server=HOST:PORT names another.");
}

absl::StatusOr<v1::PredictResponse> AskOne(Client& client, v1::PredictRequest request, const v1::Input& input,
                                           bool spread) {
  *request.add_inputs() = input;
  absl::StatusOr<v1::PredictResponse> response = spread ? client.PredictSpread(request) : client.Predict(request);
  if (!response.ok() || response->predictions_size() == 1) return response;
  return absl::InternalError(absl::StrCat("the answer has ", response->predictions_size(), " predictions for 1 input"));
}

bool IsHopeless(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kUnauthenticated ||
         code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kUnimplemented;
}

}  // namespace edgewise::cli
