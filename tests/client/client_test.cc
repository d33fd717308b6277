// The client library against a server in the same process.
#include "edgewise/client/client.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/client/fake_service.h"

namespace edgewise {
namespace {

using testing::CallInfo;
using testing::FakeServer;
using testing::PlausibleAnswer;

absl::StatusOr<v1::PredictResponse> Answer(const v1::PredictRequest& request, const CallInfo&) {
  return PlausibleAnswer(request);
}

constexpr absl::Duration kHang = absl::Minutes(1);

// A client whose calls end, whatever the server does.
std::unique_ptr<Client> Connect(ClientOptions options) {
  options.timeout = std::min(options.timeout, kHang);
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok()) throw std::runtime_error(client.status().ToString());  // GoogleTest reports it
  return *std::move(client);
}

v1::PredictRequest Request(const std::string& text) {
  v1::PredictRequest request;
  request.set_model("toy");
  request.add_inputs()->mutable_sequence()->set_text(text);
  return request;
}

TEST(ClientTest, PredictReturnsTheServersAnswer) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::StatusOr<v1::PredictResponse> response = client->Predict(Request("odd"));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->predictions(0).label(), "positive");
}

TEST(ClientTest, ErrorKeepsCodeMessageAndDetails) {
  FakeServer server([](const auto&, const auto&) -> absl::StatusOr<v1::PredictResponse> {
    absl::Status status = absl::ResourceExhaustedError("queue: 64 requests wait; the limit is 64");
    status.SetPayload(kStatusDetailsUrl, absl::Cord("details"));
    return status;
  });
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::Status status = client->Predict(Request("a")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue: 64 requests wait; the limit is 64");
  ASSERT_TRUE(status.GetPayload(kStatusDetailsUrl).has_value());
  EXPECT_EQ(*status.GetPayload(kStatusDetailsUrl), "details");
}

TEST(ClientTest, EveryErrorCodeArrivesAsItWas) {
  for (int code = 1; code <= 16; ++code) {
    FakeServer server([code](const auto&, const auto&) -> absl::StatusOr<v1::PredictResponse> {
      return absl::Status(static_cast<absl::StatusCode>(code), "because");
    });
    absl::Status status = Connect({.address = server.address()})->Predict(Request("a")).status();
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "because");
  }
}

TEST(ClientTest, DeadlineEndsACallThatTheServerSitsOn) {
  absl::Notification client_has_given_up;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo&) {
    client_has_given_up.WaitForNotificationWithTimeout(kHang);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // longer than the client's timeout
    return PlausibleAnswer(request);
  });
  std::unique_ptr<Client> client = Connect({.address = server.address(), .timeout = absl::Milliseconds(100)});
  EXPECT_EQ(client->Predict(Request("a")).status().code(), absl::StatusCode::kDeadlineExceeded);
  client_has_given_up.Notify();
  EXPECT_TRUE(client->Predict(Request("a"), {.timeout = kHang}).ok()) << "a call's own timeout wins";
}

TEST(ClientTest, NoTimeoutMeansNoDeadline) {
  std::atomic<bool> had_deadline = false;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo& info) {
    had_deadline = info.has_deadline;
    return PlausibleAnswer(request);
  });
  std::unique_ptr<Client> client = Client::Create({.address = server.address()}).value();
  ASSERT_TRUE(client->Predict(Request("a")).ok());
  EXPECT_FALSE(had_deadline);
  ASSERT_TRUE(client->Predict(Request("a"), {.timeout = kHang}).ok());
  EXPECT_TRUE(had_deadline);
}

TEST(ClientTest, ServerThatIsNotThereIsUnavailableAtOnce) {
  std::unique_ptr<Client> client = Connect({.address = "127.0.0.1:1", .timeout = kHang});
  EXPECT_EQ(client->Predict(Request("a")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Health().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->WaitForConnected(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientTest, WaitForReadyWaitsUntilTheDeadline) {
  std::unique_ptr<Client> client =
      Connect({.address = "127.0.0.1:1", .timeout = absl::Milliseconds(200), .wait_for_ready = true});
  EXPECT_EQ(client->Predict(Request("a")).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientTest, MessagesAboveFourMebibytesPassBothWays) {
  FakeServer server([](const v1::PredictRequest& request, const CallInfo&) {
    v1::PredictResponse response = PlausibleAnswer(request);
    response.set_device(request.inputs(0).sequence().text());  // 20 MB back
    return response;
  });
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::StatusOr<v1::PredictResponse> response = client->Predict(Request(std::string(20'000'000, 'x')));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->device().size(), 20'000'000u);
  std::unique_ptr<Client> narrow = Connect({.address = server.address(), .max_message_bytes = 1000});
  EXPECT_EQ(narrow->Predict(Request(std::string(2000, 'x'))).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ClientTest, ModelsAreListedAndFound) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::StatusOr<v1::ListModelsResponse> models = client->ListModels();
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_EQ(models->models_size(), 2);
  EXPECT_EQ(client->GetModel("toy")->tokenizer(), "word");
  absl::Status status = client->GetModel("ghost").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "model: no model is named \"ghost\"");
}

TEST(ClientTest, BearerTokenIsSent) {
  std::mutex mutex;
  std::string seen;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo& info) {
    std::lock_guard lock(mutex);
    seen = info.authorization;
    return PlausibleAnswer(request);
  });
  ASSERT_TRUE(Connect({.address = server.address(), .bearer_token = "s3cret"})->Predict(Request("a")).ok());
  EXPECT_EQ(seen, "Bearer s3cret");
}

TEST(ClientTest, TokenOnPlainTextToAnotherMachineIsRefusedUnlessAllowed) {
  ClientOptions options{.address = "10.0.0.1:8001", .bearer_token = "s3cret"};
  EXPECT_EQ(Client::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.allow_plain_token = true;
  EXPECT_TRUE(Client::Create(options).ok());
  options.allow_plain_token = false;
  options.tls.emplace();
  EXPECT_TRUE(Client::Create(options).ok());
}

TEST(ClientTest, OptionsThatCannotWorkAreRefusedByName) {
  auto message = [](const ClientOptions& options) { return std::string(Client::Create(options).status().message()); };
  EXPECT_EQ(message({.address = ""}), "address is empty; expected HOST:PORT");
  EXPECT_NE(message({.bearer_token = "a\nb"}).find("bearer_token"), std::string::npos);
  EXPECT_NE(message({.max_message_bytes = 0}).find("max_message_bytes is 0"), std::string::npos);
  EXPECT_NE(message({.tls = TlsOptions{.ca_file = "/nonexistent.pem"}}).find("tls.ca_file: cannot read"),
            std::string::npos);
  EXPECT_NE(message({.tls = TlsOptions{.cert_file = "/nonexistent.pem"}}).find("cert_file and key_file go together"),
            std::string::npos);
}

TEST(ClientTest, ManyThreadsShareOneClient) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 25; ++i) {
          absl::StatusOr<v1::PredictResponse> response = client->Predict(Request(std::string(1 + (t + i) % 5, 'x')));
          wrong += !response.ok() || response->predictions(0).label_id() != (1 + (t + i) % 5) % 2;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

class TlsTest : public ::testing::Test {
 protected:
  // A certificate for localhost that signs itself.
  void SetUp() override {
    const std::string command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 " +
                                std::string("-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout '") +
                                key_ + "' -out '" + certificate_ + "' > /dev/null 2>&1";
    if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no openssl program";
  }
  void TearDown() override {
    std::remove(key_.c_str());
    std::remove(certificate_.c_str());
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  testing::ServerTls ServerFiles(bool mutual) const { return {Read(certificate_), Read(key_), mutual}; }
  absl::StatusCode Ask(const FakeServer& server, std::optional<TlsOptions> tls) {
    return Connect({.address = server.address(), .tls = std::move(tls), .timeout = kHang})
        ->Predict(Request("a"))
        .status()
        .code();
  }

  // Tests run at the same time, each in a process of its own.
  const std::string base_ = ::testing::TempDir() + "edgewise_tls_" + std::to_string(getpid());
  const std::string key_ = base_ + ".key";
  const std::string certificate_ = base_ + ".pem";
};

TEST_F(TlsTest, ServerMustShowATrustedCertificateOfTheNameExpected) {
  FakeServer server(Answer, ServerFiles(false));
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "localhost"}), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "elsewhere"}),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask(server, TlsOptions{.server_name = "localhost"}), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask(server, std::nullopt), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, MutualTlsShowsOurCertificate) {
  FakeServer server(Answer, ServerFiles(true));
  EXPECT_EQ(Ask(server, TlsOptions{certificate_, certificate_, key_, "localhost"}), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "localhost"}),
            absl::StatusCode::kUnavailable);
}

TEST(HealthTest, StateOfServerAndModels) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  EXPECT_EQ(*client->Health(), HealthState::kServing);
  EXPECT_EQ(*client->Health("toy"), HealthState::kServing);
  EXPECT_EQ(*client->Health("other"), HealthState::kNotServing);
  EXPECT_EQ(client->Health("ghost").status().code(), absl::StatusCode::kNotFound);
}

TEST(HealthTest, WatchSeesEachChangeAndEndsWhenTold) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  std::vector<HealthState> seen;
  absl::Status status = client->WatchHealth("toy",
                                            [&](HealthState state) {
                                              seen.push_back(state);
                                              if (seen.size() < 3) server.SetServing("toy", seen.size() != 1);
                                              return seen.size() < 3;
                                            },
                                            {.timeout = kHang});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen, (std::vector<HealthState>{HealthState::kServing, HealthState::kNotServing, HealthState::kServing}));
}

TEST(HealthTest, WatchOfAnUnknownServiceSaysSoAndEndsAtItsDeadline) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  std::vector<HealthState> seen;
  // A busy machine may take longer than the first deadlines to say anything.
  for (absl::Duration timeout = absl::Milliseconds(200); seen.empty() && timeout < kHang; timeout *= 4) {
    absl::Status status = client->WatchHealth("ghost",
                                              [&](HealthState state) {
                                                seen.push_back(state);
                                                return true;
                                              },
                                              {.timeout = timeout});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(seen, std::vector<HealthState>{HealthState::kServiceUnknown});
}

}  // namespace
}  // namespace edgewise
