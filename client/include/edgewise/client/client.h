// A connection to an Edgewise server.
//
//   absl::StatusOr<std::unique_ptr<edgewise::Client>> client = edgewise::Client::Create({.address = "127.0.0.1:8001"});
//   edgewise::v1::PredictRequest request;
//   request.set_model("sentiment");
//   request.add_inputs()->mutable_sequence()->set_text("a warm and funny film");
//   absl::StatusOr<edgewise::v1::PredictResponse> response = (*client)->Predict(request);
//
// Errors: every call returns the status code and the message of the server, as absl::Status. No exceptions. What the
// server attached to the status (google.rpc.Status, e.g. with a RetryInfo) is the payload kStatusDetailsUrl,
// serialised.
#ifndef EDGEWISE_CLIENT_CLIENT_H_
#define EDGEWISE_CLIENT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise {

inline constexpr char kStatusDetailsUrl[] = "type.googleapis.com/google.rpc.Status";

// How to encrypt. Paths name PEM files, read once, when the client is created.
struct TlsOptions {
  std::string ca_file;    // who may sign the server's certificate; empty: the system's roots
  std::string cert_file;  // mutual TLS: our certificate, with key_file
  std::string key_file;   // mutual TLS: its private key
  // The name to expect in the server's certificate; empty: the host of the address. Several hosts need one.
  std::string server_name;
};

struct ClientOptions {
  // HOST[:PORT] or unix:PATH: one server, or a proxy. Calls that fail are made once.
  // "HOST:PORT,HOST:PORT", dns:///HOST:PORT, or ipv4: and ipv6: with a list: several servers, which get calls in turn.
  // One that is not healthy gets none, and a call that ends with UNAVAILABLE is made up to four times more, by another;
  // a generation only until its first message. The names of a list are looked up once, that of dns: again and again.
  // The port is 8001 where none is given.
  std::string address = "127.0.0.1:8001";
  std::optional<TlsOptions> tls;  // absent: plain text
  // Sent as "authorization: Bearer TOKEN". Refused on plain text to another machine unless allow_plain_token.
  std::string bearer_token;
  bool allow_plain_token = false;
  absl::Duration timeout = absl::InfiniteDuration();  // of each call that names none
  bool wait_for_ready = false;  // while the server cannot be reached: wait until the timeout, do not fail
  bool own_connection = false;  // share no socket with other clients; a server bounds the calls at a time on each
  size_t max_message_bytes = size_t{64} << 20;  // both ways
};

// Ends calls from outside. Any thread may call Cancel(), at any time and more than once: calls under way end with
// Cancelled, and so does every later one that is given this. Must outlive the calls.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel();
  bool cancelled() const;

 private:
  friend class Client;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CallOptions {
  std::optional<absl::Duration> timeout;  // absent: ClientOptions::timeout
  Cancellation* cancellation = nullptr;   // null: nobody cancels
};

// States of grpc.health.v1.
enum class HealthState { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// "SERVING", ...
const char* HealthStateName(HealthState state);

// Thread-safe: any thread may call any method at any time; calls share one connection. All calls but
// PredictAsync block, and must have returned before the destructor is called. Clients of the same address and options
// may share a socket (see own_connection).
class Client {
 public:
  // Reads the files that the options name, and looks up the hosts of a list. Does not connect: the first call does.
  // InvalidArgument; NotFound for a file that cannot be read; Unavailable for a host of a list that is not known.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);

  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Connects now. DeadlineExceeded when there is no connection after `timeout`.
  absl::Status WaitForConnected(absl::Duration timeout);

  absl::StatusOr<v1::PredictResponse> Predict(const v1::PredictRequest& request, const CallOptions& call = {});
  // Returns at once. `done` gets the answer, once, in a thread of gRPC that it must not block, nor destroy the client
  // in. `request` must live until then; the destructor of the client waits until `done` has returned.
  using PredictDone = std::function<void(const absl::StatusOr<v1::PredictResponse>& response)>;
  void PredictAsync(const v1::PredictRequest& request, PredictDone done, const CallOptions& call = {});
  // As Predict, but the samples are computed by all servers of the address, each its part, and merged: the predictions
  // have the bytes that one server gives for the same seed. A part whose server is not there, or goes away, is computed
  // by another, and one that was computed by another version or build of the model's server, or on another kind of
  // device, than the first is computed again. Needs ensemble.samples; draws ensemble.seed where there is none.
  // InvalidArgument for a tolerance, allow_degraded, fit_deadline and outputs.graph.
  absl::StatusOr<v1::PredictResponse> PredictSpread(const v1::PredictRequest& request, const CallOptions& call = {});
  // Calls `on_token` in the calling thread with every message, in order, until it returns false (Ok; the generation is
  // cancelled) or the stream ends (its status). The client's default timeout does not apply; one in `call` does, and is
  // for the whole generation.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& on_token, const CallOptions& call = {});
  absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& call = {});
  // version 0: the latest.
  absl::StatusOr<v1::ModelInfo> GetModel(const std::string& model, int64_t version = 0, const CallOptions& call = {});

  // State of one service of the server: a model's name, or "" for the server as a whole. NotFound when the server does
  // not know the service.
  absl::StatusOr<HealthState> Health(const std::string& service = "", const CallOptions& call = {});
  // Calls `on_state` in the calling thread with the state now and then with each change, until it returns false (Ok) or
  // the stream ends (its status). An unknown service is kServiceUnknown here, and may become known. The client's
  // default timeout does not apply; one in `call` does.
  absl::Status WatchHealth(const std::string& service, const std::function<bool(HealthState)>& on_state,
                           const CallOptions& call = {});

 private:
  class Cancellable;
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_CLIENT_H_
