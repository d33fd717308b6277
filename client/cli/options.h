// The flags that commands share, and what they turn into.
#ifndef EDGEWISE_CLIENT_CLI_OPTIONS_H_
#define EDGEWISE_CLIENT_CLI_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/flag_set.h"
#include "client/cli/inputs.h"
#include "edgewise/client/client.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::cli {

// How to reach the server: every command but version.
struct ConnectionFlags {
  std::string server = "127.0.0.1:8001";
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
  // InvalidArgument or NotFound for a wrong flag or file; never talks to the server.
  absl::StatusOr<std::unique_ptr<Client>> Connect(bool own_connection = false) const;
};

// What to ask: predict and bench.
struct RequestFlags {
  std::string model;
  int64_t version = 0;
  std::optional<std::string> text;
  std::optional<std::string> token_ids;
  std::optional<std::string> input;
  std::optional<std::string> second_text;
  std::optional<std::string> second_token_ids;
  std::string truncate;
  std::optional<uint64_t> max_edges;
  std::optional<double> max_density;
  bool allow_degraded = false;
  uint32_t samples = 1;
  std::optional<uint64_t> seed;
  double tolerance = 0;
  uint32_t first_sample = 0;
  bool dense = false;
  uint32_t top_k = 0;
  uint32_t priority = 0;

  void Register(FlagSet& flags);
  // Everything but the inputs.
  absl::StatusOr<v1::PredictRequest> MakeRequest() const;
  // At least one; from --text, --token_ids or the file of --input.
  absl::StatusOr<std::vector<LabelledInput>> ReadInputs() const;
};

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_OPTIONS_H_
