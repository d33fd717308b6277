// The connection to the server, the advice where it cannot be reached, and the call for one input.
#ifndef EDGEWISE_CLIENT_CLI_REQUEST_CONNECTION_H_
#define EDGEWISE_CLIENT_CLI_REQUEST_CONNECTION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flag_set.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// The flags of every command that asks a server.
struct ConnectionFlags {
  std::string server = "127.0.0.1:8001";  // or EDGEWISE_SERVER, from the environment
  absl::Duration timeout = absl::Seconds(60);
  bool wait_for_ready = false;
  bool tls = false;
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  std::string tls_server_name;
  std::string token_file;
  bool allow_plain_token = false;

  void Register(FlagSet& flags);
  // --server is an address as ClientOptions::address takes it, also with the http:// and the last slash that people
  // copy with one. InvalidArgument or NotFound for a wrong flag or file; never talks to the server.
  absl::StatusOr<std::unique_ptr<Client>> Connect(bool own_connection = false) const;
  // One sentence on what to try after a call that ended with `status`, or "".
  std::string Hint(const absl::Status& status) const;

 private:
  bool encrypted() const;
};

// `request` with this one input: commands send the inputs of a file one by one, so that an input that the server
// refuses costs no other. The answer has one prediction; Internal where the server sent another number of them. spread:
// by Client::PredictSpread.
absl::StatusOr<v1::PredictResponse> AskOne(Client& client, v1::PredictRequest request, const v1::Input& input,
                                           bool spread = false);

// After an error of this code the next input would fare no better.
bool IsHopeless(absl::StatusCode code);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_REQUEST_CONNECTION_H_
