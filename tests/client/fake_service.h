// An InferenceService inside the test, on a port of its own, that answers whatever the test says.
#ifndef EDGEWISE_TESTS_CLIENT_FAKE_SERVICE_H_
#define EDGEWISE_TESTS_CLIENT_FAKE_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::testing {

// The metadata and deadline of a call, as the server saw them.
struct CallInfo {
  std::string authorization;
  bool has_deadline = false;
};

// PEM. Clients must show a certificate that `certificate` signed where `mutual` says so.
struct ServerTls {
  std::string certificate;
  std::string key;
  bool mutual = false;
};

class FakeServer {
 public:
  // Gives a message; false: the client has gone.
  using Emit = std::function<bool(const v1::GenerateResponse&)>;
  using Generate = std::function<absl::Status(const v1::GenerateRequest&, const Emit&)>;
  using Predict = std::function<absl::StatusOr<v1::PredictResponse>(const v1::PredictRequest&, const CallInfo&)>;

  // Serves on 127.0.0.1 until destroyed. `predict` may be called from several threads at a time. Four models exist:
  // "toy" (word tokenizer, labels negative and positive), "ids" (no tokenizer), "encoder" (task embedding) and "other".
  // Health: the server and "toy" serve, "other" does not.
  explicit FakeServer(Predict predict, const ServerTls& tls = {});
  ~FakeServer();

  const std::string& address() const { return address_; }
  // Sets the answer to Generate; before that, Generate is UNIMPLEMENTED. `generate` may be called from several threads
  // at a time.
  void SetGenerate(Generate generate);
  void SetServing(const std::string& service, bool serving);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

// A plausible answer with one prediction per input: label = (number of tokens or bytes of the input) modulo 2, its
// probability 0.75; 40 edges of 160 pairs over 2 layers and 2 heads, with key degrees and the graph where asked for.
v1::PredictResponse PlausibleAnswer(const v1::PredictRequest& request);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CLIENT_FAKE_SERVICE_H_
