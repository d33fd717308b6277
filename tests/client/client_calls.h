// A client and calls as tests of the client library make them.
#ifndef EDGEWISE_TESTS_CLIENT_CLIENT_CALLS_H_
#define EDGEWISE_TESTS_CLIENT_CLIENT_CALLS_H_

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "edgewise/client/client.h"
#include "tests/client/fake_service.h"

namespace edgewise::testing {

inline absl::StatusOr<v1::PredictResponse> Answer(const v1::PredictRequest& request, const CallInfo&) {
  return PlausibleAnswer(request);
}

inline constexpr absl::Duration kHang = absl::Minutes(1);

// A client whose calls end, whatever the server does.
inline std::unique_ptr<Client> Connect(ClientOptions options) {
  options.timeout = std::min(options.timeout, kHang);
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok()) throw std::runtime_error(client.status().ToString());  // GoogleTest reports it
  return *std::move(client);
}

inline v1::PredictRequest Request(const std::string& text) {
  v1::PredictRequest request;
  request.set_model("toy");
  request.add_inputs()->mutable_sequence()->set_text(text);
  return request;
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CLIENT_CLIENT_CALLS_H_
