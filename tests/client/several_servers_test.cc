// The client library with the addresses of several servers.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/client/client_calls.h"
#include "tests/client/localhost.h"
#include "tests/client/tls_files.h"

namespace edgewise {
namespace {

using testing::CallInfo;
using testing::Connect;
using testing::FakeServer;
using testing::kHang;
using testing::PlausibleAnswer;
using testing::Request;

// A server that counts its calls; `code`: what they end with.
struct Counting {
  std::atomic<int> calls = 0;
  std::atomic<int> code = 0;
  std::string token;
  std::unique_ptr<FakeServer> server;

  explicit Counting(const testing::ServerTls& tls = {}) {
    server = std::make_unique<FakeServer>(
        [this](const v1::PredictRequest& request, const CallInfo& info) -> absl::StatusOr<v1::PredictResponse> {
          ++calls;
          token = info.authorization;
          if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code.load()), "because");
          return PlausibleAnswer(request);
        },
        tls);
  }
};

std::string AddressOf(const std::vector<const Counting*>& servers) {
  std::string address;
  for (const Counting* one : servers) absl::StrAppend(&address, address.empty() ? "" : ",", one->server->address());
  return address;
}

// Until every server has had a call, which connects to it.
void Warm(Client& client, std::vector<Counting*> servers) {
  const absl::Time end = absl::Now() + kHang;
  for (Counting* one : servers) {
    while (one->calls == 0) {
      ASSERT_TRUE(client.Predict(Request("a")).ok());
      ASSERT_LT(absl::Now(), end) << "a server gets no call";
    }
  }
  for (Counting* one : servers) one->calls = 0;
}

TEST(SeveralServersTest, GetCallsInTurn) {
  Counting first, second;
  const std::string port = first.server->address().substr(first.server->address().find(':'));
  const std::string other = second.server->address().substr(second.server->address().find(':'));
  for (const std::string& address :
       {AddressOf({&first, &second}), "ipv4:" + AddressOf({&first, &second}),
        "[::ffff:127.0.0.1]" + port + ",127.0.0.1" + other, "localhost" + port + ",localhost" + other}) {
    if (address[0] == 'l' && !testing::KnowsLocalhost()) GTEST_SKIP() << testing::kNoLocalhost;
    first.calls = second.calls = 0;
    const std::unique_ptr<Client> client = Connect({.address = address});
    Warm(*client, {&first, &second});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(client->Predict(Request("a")).ok());
    EXPECT_EQ(first.calls, 50) << address;
    EXPECT_EQ(second.calls, 50) << address;
  }
}

TEST(SeveralServersTest, OneThatIsNotHealthyGetsNoCallsUntilItIs) {
  Counting first, second;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second})});
  Warm(*client, {&first, &second});
  first.server->SetServing("", false);
  const absl::Time end = absl::Now() + kHang;
  int alone = 0;  // calls in a row that the other answered
  while (alone < 20) {
    ASSERT_LT(absl::Now(), end);
    const int before = second.calls;
    ASSERT_TRUE(client->Predict(Request("a")).ok());
    alone = second.calls > before ? alone + 1 : 0;
  }
  first.server->SetServing("", true);
  Warm(*client, {&first, &second});
}

TEST(SeveralServersTest, WhereNoneIsHealthyCallsAreUnavailable) {
  Counting first, second;
  first.server->SetServing("", false);
  second.server->SetServing("", false);
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second})});
  EXPECT_EQ(client->Predict(Request("a")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(first.calls + second.calls, 0);
}

TEST(SeveralServersTest, WhatOneRefusesAsUnavailableAnotherIsAsked) {
  Counting first, second;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second})});
  Warm(*client, {&first, &second});
  first.code = static_cast<int>(absl::StatusCode::kUnavailable);
  for (int i = 0; i < 20; ++i) {
    const absl::StatusOr<v1::PredictResponse> response = client->Predict(Request("a"));
    ASSERT_TRUE(response.ok()) << response.status();
  }
  EXPECT_GT(first.calls, 0);
  EXPECT_EQ(second.calls, 20);
}

TEST(SeveralServersTest, OtherErrorsAreTheAnswer) {
  Counting first, second;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second})});
  for (int code = 1; code <= 16; ++code) {
    if (code == static_cast<int>(absl::StatusCode::kUnavailable)) continue;
    first.code = second.code = code;
    first.calls = second.calls = 0;
    EXPECT_EQ(client->Predict(Request("a")).status().raw_code(), code);
    EXPECT_EQ(first.calls + second.calls, 1) << "code " << code;
  }
}

TEST(SeveralServersTest, TheLossOfOneLosesNoCall) {
  Counting first, second, third;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second, &third})});
  Warm(*client, {&first, &second, &third});
  std::atomic<int> answered = 0, failed = 0;
  std::atomic<bool> stop = false;
  std::vector<std::jthread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      while (!stop) {
        const absl::Status status = client->Predict(Request("a")).status();
        status.ok() ? ++answered : ++failed;
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  const auto more = [&] {
    const int until = answered + 200;
    while (answered < until && failed == 0) std::this_thread::yield();
  };
  more();
  for (Counting* one : {&first, &third}) {  // as a server of ours: gRPC's own shutdown ends calls with CANCELLED
    one->code = static_cast<int>(absl::StatusCode::kUnavailable);
    one->server->SetServing("", false);
    more();
    one->server.reset();
    more();
  }
  stop = true;
  callers.clear();
  EXPECT_EQ(failed, 0);
}

TEST(SeveralServersTest, AGenerationThatHasBegunIsNotBegunAgain) {
  for (const int messages : {0, 2}) {
    std::atomic<int> calls = 0;
    std::vector<std::unique_ptr<FakeServer>> servers;
    std::string address;
    for (int i = 0; i < 2; ++i) {
      servers.push_back(std::make_unique<FakeServer>(testing::Answer));
      absl::StrAppend(&address, i == 0 ? "" : ",", servers.back()->address());
      servers.back()->SetGenerate([&](const v1::GenerateRequest&, const FakeServer::Emit& emit) {
        const bool last = ++calls > 2;
        for (int m = 0; m < messages; ++m) emit(v1::GenerateResponse());
        return last ? absl::OkStatus() : absl::UnavailableError("gone");
      });
    }
    const std::unique_ptr<Client> client = Connect({.address = address});
    const absl::Status status = client->Generate({}, [](const auto&) { return true; }, {.timeout = kHang});
    EXPECT_EQ(status.code(), messages == 0 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    EXPECT_EQ(calls, messages == 0 ? 3 : 1);
  }
}

TEST(SeveralServersTest, RequestsOfMegabytesAreAskedAgainToo) {
  Counting first, second;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second})});
  Warm(*client, {&first, &second});
  first.code = static_cast<int>(absl::StatusCode::kUnavailable);
  for (int i = 0; i < 4; ++i) {
    const absl::Status status = client->Predict(Request(std::string(2'000'000, 'x'))).status();
    ASSERT_TRUE(status.ok()) << status;
  }
}

TEST(SeveralServersTest, TokensAreSentToEachOnPlainText) {
  Counting first, second;
  const std::unique_ptr<Client> client = Connect({.address = AddressOf({&first, &second}), .bearer_token = "s3cret"});
  Warm(*client, {&first, &second});
  EXPECT_EQ(first.token, "Bearer s3cret");
  EXPECT_EQ(second.token, "Bearer s3cret");
}

TEST(SeveralServersTest, TheTokenStaysHereWhereOneOfThemIsAnotherMachine) {
  EXPECT_EQ(Client::Create({.address = "127.0.0.1:1,10.0.0.1:1", .bearer_token = "s3cret"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Create({.address = "dns:///example.org:1", .bearer_token = "s3cret"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SeveralServersTest, OneNameIsExpectedInAllCertificates) {
  const testing::TlsFiles files{};
  if (!files.Make()) GTEST_SKIP() << "no openssl program";
  Counting first(files.ForServer(false)), second(files.ForServer(false));
  const std::string address = AddressOf({&first, &second});
  const std::unique_ptr<Client> client =
      Connect({.address = address,
               .tls = TlsOptions{.ca_file = files.certificate(), .server_name = "localhost"},
               .bearer_token = "s3cret"});
  Warm(*client, {&first, &second});
  EXPECT_EQ(second.token, "Bearer s3cret");
  const std::unique_ptr<Client> other =
      Connect({.address = address, .tls = TlsOptions{.ca_file = files.certificate(), .server_name = "elsewhere"}});
  EXPECT_EQ(other->Predict(Request("a")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Client::Create({.address = "127.0.0.1:1,127.0.0.2:1", .tls = TlsOptions()}).status().message(),
            "tls.server_name is empty; expected the name that the certificates of all servers have, since address has "
            "several hosts (127.0.0.1, 127.0.0.2)");
  if (!testing::KnowsLocalhost()) GTEST_SKIP() << testing::kNoLocalhost;
  const std::string port = first.server->address().substr(first.server->address().find(':'));
  const std::unique_ptr<Client> named =
      Connect({.address = "dns:///localhost" + port, .tls = TlsOptions{.ca_file = files.certificate()}});
  EXPECT_TRUE(named->Predict(Request("a")).ok());
}

}  // namespace
}  // namespace edgewise
