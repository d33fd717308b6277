// What the client library does with calls that fail or take too long: one server is asked nothing twice.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "tests/client/client_calls.h"

namespace edgewise {
namespace {

using testing::Answer;
using testing::Connect;
using testing::FakeServer;
using testing::Request;

// With a google.rpc.Status that holds a RetryInfo of one second, as the server sends it.
absl::Status WithRetryInfo(int code) {
  const auto field = [](char tag, const std::string& bytes) {
    return absl::StrCat(std::string(1, tag), std::string(1, static_cast<char>(bytes.size())), bytes);
  };
  const std::string info = field('\x0a', std::string("\x08\x01", 2));
  const std::string any = absl::StrCat(field('\x0a', "type.googleapis.com/google.rpc.RetryInfo"), field('\x12', info));
  absl::Status status(static_cast<absl::StatusCode>(code), "because");
  status.SetPayload(kStatusDetailsUrl,
                    absl::Cord(absl::StrCat("\x08", std::string(1, static_cast<char>(code)), field('\x1a', any))));
  return status;
}

// Whether and when to ask again is the caller's to choose: a request may cost a lot, and a generation may have been
// read.
TEST(NoRetryTest, CallThatFailsIsMadeOnceWhateverTheCode) {
  std::atomic<int> calls = 0;
  std::atomic<int> code = 0;
  FakeServer server([&](const auto&, const auto&) -> absl::StatusOr<v1::PredictResponse> {
    ++calls;
    return WithRetryInfo(code);
  });
  for (const bool wait_for_ready : {false, true}) {
    const std::unique_ptr<Client> asking = Connect({.address = server.address(), .wait_for_ready = wait_for_ready});
    for (code = 1; code <= 16; ++code) {
      calls = 0;
      EXPECT_EQ(asking->Predict(Request("a"), {.timeout = absl::Seconds(60)}).status().raw_code(), code);
      EXPECT_EQ(calls, 1) << "code " << code;
    }
  }
}

TEST(NoRetryTest, GenerationThatFailsIsAskedForOnceWhateverTheCode) {
  for (const int messages : {0, 2}) {
    std::atomic<int> calls = 0;
    std::atomic<int> code = 0;
    FakeServer server(Answer);
    server.SetGenerate([&](const v1::GenerateRequest&, const FakeServer::Emit& emit) {
      ++calls;
      for (int i = 0; i < messages; ++i) emit(v1::GenerateResponse());
      return WithRetryInfo(code);
    });
    std::unique_ptr<Client> client = Connect({.address = server.address()});
    for (code = 1; code <= 16; ++code) {
      calls = 0;
      int seen = 0;
      const absl::Status status =
          client->Generate({}, [&](const auto&) { return ++seen < 10; }, {.timeout = absl::Seconds(60)});
      EXPECT_EQ(status.raw_code(), code);
      EXPECT_EQ(calls, 1) << "code " << code;
      EXPECT_EQ(seen, messages) << "code " << code;
    }
  }
}

// A deadline of an hour ago.
TEST(TimeoutTest, EveryCallTakesItsOwnAndStreamsNotTheDefault) {
  FakeServer server(Answer);
  server.SetGenerate([](const auto&, const auto&) { return absl::OkStatus(); });
  const CallOptions none = {.timeout = -absl::Hours(1)}, long_enough = {.timeout = absl::Seconds(60)};
  const std::unique_ptr<Client> patient = Connect({.address = server.address()});
  const std::unique_ptr<Client> hasty = Connect({.address = server.address(), .timeout = -absl::Hours(1)});
  const auto one_state = [](HealthState) { return false; };
  const auto any_token = [](const v1::GenerateResponse&) { return true; };
  const std::pair<const char*, std::function<absl::Status(Client&, const CallOptions&)>> unary[] = {
      {"Predict", [](Client& client, const CallOptions& call) { return client.Predict(Request("a"), call).status(); }},
      {"ListModels", [](Client& client, const CallOptions& call) { return client.ListModels(call).status(); }},
      {"GetModel", [](Client& client, const CallOptions& call) { return client.GetModel("toy", 0, call).status(); }},
      {"Health", [](Client& client, const CallOptions& call) { return client.Health("", call).status(); }}};
  for (const auto& [name, call] : unary) {
    EXPECT_EQ(call(*patient, {}).code(), absl::StatusCode::kOk) << name;
    EXPECT_EQ(call(*patient, none).code(), absl::StatusCode::kDeadlineExceeded) << name;
    EXPECT_EQ(call(*hasty, {}).code(), absl::StatusCode::kDeadlineExceeded) << name;
    EXPECT_EQ(call(*hasty, long_enough).code(), absl::StatusCode::kOk) << name;
  }
  EXPECT_EQ(hasty->Generate({}, any_token).code(), absl::StatusCode::kOk);
  EXPECT_EQ(patient->Generate({}, any_token, none).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(hasty->WatchHealth("toy", one_state).code(), absl::StatusCode::kOk);
  EXPECT_EQ(patient->WatchHealth("toy", one_state, none).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace edgewise
