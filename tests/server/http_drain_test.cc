// Clients of HTTP that keep their connections lose no call by the end of a server that was announced.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_fixture.h"
#include "tests/server/tls_client.h"

namespace edgewise::server {
namespace {

constexpr char kFourTokens[] = R"({"model": "sbm", "inputs": [{"sequence": {"tokenIds": {"values": [1, 2, 3, 4]}}}]})";

// By whether it is over TLS.
class HttpDrainTest : public ::testing::TestWithParam<bool> {
 protected:
  HttpDrainTest() {
    ServerOptions options = HttpOptions();
    if (GetParam()) {
      const Identity identity("server", 86400);
      folder_.Write("certificate.pem", identity.certificate_pem());
      folder_.Write("key.pem", identity.key_pem());
      options.security = {.tls_certificate = folder_.path() + "/certificate.pem",
                          .tls_key = folder_.path() + "/key.pem"};
    }
    http_ = std::make_unique<HttpServerFixture>(options);
  }

  std::unique_ptr<HttpClient> Connect(bool* refused) {
    if (!GetParam()) return std::make_unique<HttpClient>(http_->port(), 1, refused);
    return std::make_unique<TlsClient>(http_->port(), TlsClientOptions(), refused);
  }
  Server& server() { return http_->server.server(); }

  TestFolder folder_;
  std::unique_ptr<HttpServerFixture> http_;
};

INSTANTIATE_TEST_SUITE_P(Transports, HttpDrainTest, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Plain"; });

TEST_P(HttpDrainTest, ClientsThatSendAsFastAsTheyGetAnswersLoseNoCall) {
  constexpr int kClients = 12;
  std::atomic<int> answered = 0, lost = 0, ended = 0;
  std::vector<std::jthread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      std::unique_ptr<HttpClient> client;
      for (;;) {
        bool refused = false;
        if (!client) client = Connect(&refused);
        if (refused) break;
        const HttpReply reply = client->Post(kPredict, kFourTokens);
        if (reply.code != 200) {
          ++lost;
          break;
        }
        ++answered;
        if (reply.field("Connection") == "close") client.reset();
      }
      ++ended;
    });
  }
  const auto wait_for_answers = [&](int more) {
    const int before = answered;
    EXPECT_TRUE(WaitUntil("answers", [&] { return answered >= before + more; }));
  };
  wait_for_answers(20 * kClients);
  server().AnnounceDrain();
  wait_for_answers(20 * kClients);
  server().StopListening();
  EXPECT_TRUE(WaitUntil("each client to be refused", [&] { return ended == kClients; }));
  server().Drain(milliseconds(0));
  clients.clear();
  EXPECT_EQ(lost, 0) << "of " << answered;
}

TEST_P(HttpDrainTest, AnIdleConnectionIsServedUntilTheDrainBegins) {
  bool refused = false;
  const std::unique_ptr<HttpClient> asks = Connect(&refused), silent = Connect(&refused);
  for (const auto* client : {&asks, &silent}) EXPECT_EQ((*client)->Ask("GET", "/livez").field("Connection"), "");
  server().AnnounceDrain();
  server().StopListening();
  const HttpReply reply = asks->Post(kPredict, kFourTokens);
  EXPECT_EQ(reply.code, 200) << reply.body;
  EXPECT_EQ(reply.field("Connection"), "close");
  EXPECT_TRUE(asks->Ended());
  char byte;
  EXPECT_EQ(recv(silent->fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1) << "it is open";
  server().Drain(milliseconds(0));
  EXPECT_TRUE(silent->Ended());
}

}  // namespace
}  // namespace edgewise::server
