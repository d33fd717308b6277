// The client library against a server in the same process.
#include "edgewise/client/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/client/client_calls.h"
#include "tests/client/fake_service.h"
#include "tests/client/tls_files.h"

namespace edgewise {
namespace {

using testing::Answer;
using testing::CallInfo;
using testing::Connect;
using testing::FakeServer;
using testing::kHang;
using testing::PlausibleAnswer;
using testing::Request;

TEST(ClientTest, PredictReturnsTheServersAnswer) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::StatusOr<v1::PredictResponse> response = client->Predict(Request("odd"));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->predictions(0).label(), "positive");
}

TEST(ClientTest, AsyncCallsRunTogetherAndEachEndsOnce) {
  constexpr int kCalls = 20;
  absl::Mutex mutex;
  int arrived = 0;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo& call) {
    const absl::MutexLock lock(&mutex);
    ++arrived;
    mutex.Await(absl::Condition(
        +[](int* count) { return *count == kCalls; }, &arrived));  // all are under way
    return Answer(request, call);
  });
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  const v1::PredictRequest odd = Request("odd"), even = Request("even");
  absl::BlockingCounter running(kCalls);
  std::atomic<int> positive = 0;
  for (int i = 0; i < kCalls; ++i) {
    client->PredictAsync(i % 4 == 0 ? odd : even, [&](const absl::StatusOr<v1::PredictResponse>& response) {
      positive += response.ok() && response->predictions(0).label() == "positive";
      running.DecrementCount();
    });
  }
  running.Wait();
  EXPECT_EQ(positive, kCalls / 4);
}

// The thread of gRPC that calls `done` has the call's context a little longer.
TEST(ClientTest, MayGoWhileTheLastAsyncCallReturns) {
  FakeServer server([](const v1::PredictRequest& request, const CallInfo&) { return PlausibleAnswer(request); });
  const v1::PredictRequest request = Request("a");
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<Client> client = Connect({.address = server.address()});
    absl::Notification called;
    std::atomic<bool> returned = false;
    client->PredictAsync(request, [&](const absl::StatusOr<v1::PredictResponse>&) {
      called.Notify();
      absl::SleepFor(absl::Milliseconds(50));
      returned = true;
    });
    called.WaitForNotification();
    client.reset();
    EXPECT_TRUE(returned);
  }
}

TEST(ClientTest, AsyncCallsKeepTheErrorAndEndWhenCancelled) {
  absl::Notification cancelled;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo&) -> absl::StatusOr<v1::PredictResponse> {
    if (request.inputs(0).sequence().text() == "bad") return absl::ResourceExhaustedError("queue: full");
    cancelled.WaitForNotificationWithTimeout(kHang);
    return PlausibleAnswer(request);
  });
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  const v1::PredictRequest bad = Request("bad"), slow = Request("slow");
  absl::Notification bad_ended, slow_ended;
  absl::Status bad_status, slow_status;
  Cancellation cancellation;
  client->PredictAsync(bad, [&](const absl::StatusOr<v1::PredictResponse>& response) {
    bad_status = response.status();
    bad_ended.Notify();
  });
  client->PredictAsync(slow,
                       [&](const absl::StatusOr<v1::PredictResponse>& response) {
                         slow_status = response.status();
                         slow_ended.Notify();
                       },
                       {.cancellation = &cancellation});
  cancellation.Cancel();
  bad_ended.WaitForNotification();
  slow_ended.WaitForNotification();
  cancelled.Notify();
  EXPECT_EQ(bad_status, absl::ResourceExhaustedError("queue: full"));
  EXPECT_EQ(slow_status.code(), absl::StatusCode::kCancelled);
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
    response.set_device(request.inputs(0).sequence().text());  // 5 MB back
    return response;
  });
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  absl::StatusOr<v1::PredictResponse> response = client->Predict(Request(std::string(5'000'000, 'x')));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->device().size(), 5'000'000u);
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
  void SetUp() override {
    if (!files_.Make()) GTEST_SKIP() << "no openssl program";
  }
  absl::StatusCode Ask(const FakeServer& server, std::optional<TlsOptions> tls) {
    return Connect({.address = server.address(), .tls = std::move(tls), .timeout = kHang})
        ->Predict(Request("a"))
        .status()
        .code();
  }

  const testing::TlsFiles files_{};
  const std::string& key_ = files_.key();
  const std::string& certificate_ = files_.certificate();
};

TEST_F(TlsTest, ServerMustShowATrustedCertificateOfTheNameExpected) {
  FakeServer server(Answer, files_.ForServer(false));
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "localhost"}), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "elsewhere"}),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask(server, TlsOptions{.server_name = "localhost"}), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask(server, std::nullopt), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, MutualTlsShowsOurCertificate) {
  FakeServer server(Answer, files_.ForServer(true));
  EXPECT_EQ(Ask(server, TlsOptions{certificate_, certificate_, key_, "localhost"}), absl::StatusCode::kOk);
  EXPECT_EQ(Ask(server, TlsOptions{.ca_file = certificate_, .server_name = "localhost"}),
            absl::StatusCode::kUnavailable);
}

TEST(ClientTest, AVersionIsAskedFor) {
  FakeServer server(Answer);
  const std::unique_ptr<Client> client = Connect({.address = server.address()});
  EXPECT_EQ(client->GetModel("toy", 1)->version(), 1);
  EXPECT_EQ(client->GetModel("toy", 7).status().message(), "toy has no version 7");
}

TEST(ClientTest, MessagesAreBoundedEachWay) {
  std::atomic<int> calls = 0;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo&) {
    ++calls;
    v1::PredictResponse response;
    if (request.request_id() == "large") response.set_device(std::string(2000, 'x'));
    return response;
  });
  const std::unique_ptr<Client> narrow = Connect({.address = server.address(), .max_message_bytes = 1000});
  EXPECT_EQ(narrow->Predict(Request(std::string(2000, 'x'))).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 0) << "not sent";
  v1::PredictRequest request = Request("small");
  EXPECT_TRUE(narrow->Predict(request).ok());
  request.set_request_id("large");
  EXPECT_EQ(narrow->Predict(request).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 2) << "sent, but the answer is not taken";
}

TEST(ClientTest, WhatIsCancelledBeforeItBeginsIsNotSent) {
  std::atomic<int> calls = 0;
  FakeServer server([&](const v1::PredictRequest& request, const CallInfo&) {
    ++calls;
    return PlausibleAnswer(request);
  });
  const std::unique_ptr<Client> client = Connect({.address = server.address()});
  Cancellation cancellation;
  EXPECT_TRUE(client->Predict(Request("a"), {.cancellation = &cancellation}).ok());
  cancellation.Cancel();
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_EQ(client->Predict(Request("a"), {.cancellation = &cancellation}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client->Generate({}, [](const auto&) { return true; }, {.cancellation = &cancellation}).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

// A token travels in the clear to this machine only, whatever an address looks like.
TEST(ClientTest, LocalAddressesAreThoseOfThisMachine) {
  for (const char* local : {"127.0.0.1:1", "127.255.3.4:1", "localhost:1", "[::1]:1", "unix:/tmp/socket"}) {
    EXPECT_TRUE(Client::Create({.address = local, .bearer_token = "s3cret"}).ok()) << local;
  }
  for (const char* distant : {"128.0.0.1:1", "126.0.0.1:1", "localhost.example.org:1", "127.0.0.1.example.org:1",
                              "notlocalhost:1", "[::2]:1", "example.org:127"}) {
    EXPECT_EQ(Client::Create({.address = distant, .bearer_token = "s3cret"}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << distant;
  }
}

}  // namespace
}  // namespace edgewise
