// A port of HTTP with the routes of health and metrics alone, as --metrics_listen has it.
#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "server/http/port.h"
#include "server/http/state.h"
#include "tests/server/http_client.h"
#include "tests/server/wait_until.h"

namespace edgewise::server {
namespace {

class HttpPortTest : public ::testing::Test {
 protected:
  HttpPortTest() {
    AddStateRoutes(routes_, {[this] {
                               ++pages_;
                               return std::string("edgewise_up 1\n");
                             },
                             [this](std::string* json) {
                               *json = "{}";
                               return healthy_.load();
                             }});
    Open(std::chrono::hours(1));
  }

  static HttpPortOptions OptionsOf(const std::string& address) { return {.flag = "--here", .address = address}; }

  void Open(std::chrono::milliseconds timeout) {
    HttpPortOptions options = OptionsOf("127.0.0.1:0");
    options.idle_timeout = options.head_timeout = options.write_timeout = timeout;
    port_ = HttpPort::Open(options, routes_).value();
    port_->Start();
  }

  HttpReply Ask(const std::string& request) const {
    HttpClient client(port_->port());
    client.Send(request);
    return client.Read(request.compare(0, 5, "HEAD ") == 0);
  }

  static std::string Unzipped(const std::string& packed) {
    z_stream stream{};
    EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
    std::string text(1 << 16, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(packed.size());
    stream.next_out = reinterpret_cast<Bytef*>(text.data());
    stream.avail_out = static_cast<uInt>(text.size());
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    text.resize(stream.total_out);
    inflateEnd(&stream);
    return text;
  }

  std::atomic<bool> healthy_ = true;
  std::atomic<int> pages_ = 0;
  Routes routes_;
  std::unique_ptr<HttpPort> port_;
};

TEST_F(HttpPortTest, ServesMetricsAsExpositionText) {
  const HttpReply reply = Ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(reply.code, 200);
  EXPECT_EQ(reply.field("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(reply.body, "edgewise_up 1\n");
}

TEST_F(HttpPortTest, EveryNameOfReadinessFollowsTheServerAndLivenessDoesNot) {
  for (const bool healthy : {true, false}) {
    healthy_ = healthy;
    for (const char* path : {"/readyz", "/health", "/healthz", "/v2/health/ready"}) {
      EXPECT_EQ(Ask(std::string("GET ") + path + " HTTP/1.1\r\n\r\n").code, healthy ? 200 : 503) << path;
    }
    for (const char* path : {"/livez", "/v2/health/live"}) {
      EXPECT_EQ(Ask(std::string("GET ") + path + " HTTP/1.1\r\n\r\n").code, 200) << path;
    }
  }
}

TEST_F(HttpPortTest, AConnectionAnswersOneRequestAfterTheOther) {
  HttpClient client(port_->port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Ask("GET", "/healthz").code, 200);
  client.Send("GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.Read().body, "{}");
  EXPECT_EQ(client.Read().body, "edgewise_up 1\n");
  const HttpReply last = client.Ask("GET", "/healthz", "Connection: close\r\n");
  EXPECT_EQ(last.field("Connection"), "close");
  EXPECT_TRUE(client.Ended());
  HttpClient old(port_->port());
  old.Send("GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().body, "{}");
  EXPECT_TRUE(old.Ended());
}

// Whatever comes with it.
TEST_F(HttpPortTest, AnotherPathIsNotFoundAndAnotherMethodNotAllowed) {
  const std::string body = "Content-Length: 5\r\n\r\nhello",
                    chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
  for (const char* method : {"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string start = std::string(method) + " ";
    for (const std::string& rest : {std::string("\r\n"), body, chunked}) {
      const HttpReply unknown = Ask(start + "/v1/embeddings HTTP/1.1\r\n" + rest);
      EXPECT_EQ(unknown.code, 404) << method;
      EXPECT_EQ(unknown.body, R"({"error":"there is no \"/v1/embeddings\""})");
      for (const char* path : {"/metrics", "/healthz?x=1"}) {
        const HttpReply reply = Ask(start + path + " HTTP/1.1\r\n" + rest);
        if (std::string(method) == "GET") {
          EXPECT_EQ(reply.code, rest == "\r\n" ? 200 : 400) << rest;
        } else {
          EXPECT_EQ(reply.code, 405) << method;
          EXPECT_EQ(reply.field("Allow"), "GET, HEAD");
        }
      }
    }
  }
  EXPECT_EQ(Ask("GET /../etc/passwd HTTP/1.1\r\n\r\n").code, 404);
  EXPECT_EQ(Ask("garbage\r\n\r\n").code, 400);
}

// A reset would take the answer with it.
TEST_F(HttpPortTest, ARefusedBodyDoesNotCostTheAnswer) {
  const std::string body(900 << 10, 'x');
  EXPECT_EQ(Ask("POST /v1/chat HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body).code,
            404);
}

TEST_F(HttpPortTest, HeadAnswersAsGetDoesWithoutABody) {
  for (const char* path : {"/metrics", "/healthz", "/nothing"}) {
    const HttpReply get = Ask(std::string("GET ") + path + " HTTP/1.1\r\n\r\n");
    HttpClient client(port_->port());
    client.Send(std::string("HEAD ") + path + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    const HttpReply head = client.Read(true);
    EXPECT_EQ(head.code, get.code) << path;
    EXPECT_EQ(head.field("Content-Type"), get.field("Content-Type"));
    EXPECT_TRUE(client.Ended()) << "no body follows";
  }
  EXPECT_EQ(pages_, 1) << "HEAD makes no page";
}

TEST_F(HttpPortTest, MetricsAreCompressedForThoseWhoTakeIt) {
  for (const char* accepted : {"Accept-Encoding: gzip\r\n", "Accept-Encoding: deflate, GZIP;q=0.5 ,br\r\n",
                               "accept-encoding: br\r\nAccept-Encoding: gzip;q=1.0\r\n"}) {
    const HttpReply packed = Ask(std::string("GET /metrics HTTP/1.1\r\n") + accepted + "\r\n");
    EXPECT_EQ(packed.field("Content-Encoding"), "gzip") << accepted;
    EXPECT_EQ(packed.field("Vary"), "Accept-Encoding") << accepted;
    EXPECT_EQ(Unzipped(packed.body), "edgewise_up 1\n");
  }
  for (const char* accepted : {"", "Accept-Encoding: gzip;q=0\r\n", "Accept-Encoding: gzip;q=x\r\n",
                               "Accept-Encoding: identity\r\n", "Accept-Encoding: xgzip\r\n", "Accept-Encoding:\r\n"}) {
    const HttpReply plain = Ask(std::string("GET /metrics HTTP/1.1\r\n") + accepted + "\r\n");
    EXPECT_EQ(plain.field("Content-Encoding"), "") << accepted;
    EXPECT_EQ(plain.body, "edgewise_up 1\n") << accepted;
  }
}

TEST_F(HttpPortTest, AHeadOver8KiBIsRefused) {
  const HttpReply reply = Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n");
  EXPECT_TRUE(reply.code == 0 || reply.code == 431) << reply.code;
  EXPECT_EQ(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(8000, 'x') + "\r\n\r\n").code, 200);
}

TEST_F(HttpPortTest, ASilentConnectionIsClosedOnceItsTimeIsOver) {
  HttpClient patient(port_->port());
  EXPECT_EQ(Ask("GET /healthz HTTP/1.1\r\n\r\n").code, 200);
  char byte;
  EXPECT_EQ(recv(patient.fd(), &byte, 1, MSG_DONTWAIT), -1) << "it has an hour";
  patient.Close();
  Open(std::chrono::milliseconds(50));
  EXPECT_TRUE(HttpClient(port_->port()).Ended());
  HttpClient half(port_->port());
  half.Send("GET /heal");
  EXPECT_TRUE(half.Ended());
}

TEST_F(HttpPortTest, IdleConnectionsAreBoundedAndMakeRoomAgain) {
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 64; ++i) idle.push_back(std::make_unique<HttpClient>(port_->port()));
  EXPECT_TRUE(WaitUntil("64 connections", [&] { return port_->connections() == 64; }));
  EXPECT_TRUE(HttpClient(port_->port()).Ended()) << "closed at once";
  idle.clear();
  EXPECT_TRUE(WaitUntil("room", [&] { return port_->connections() == 0; }));
  EXPECT_EQ(Ask("GET /metrics HTTP/1.1\r\n\r\n").code, 200);
}

TEST_F(HttpPortTest, AnAnnouncedDrainIsToldByEveryAnswerAndLeavesIdleConnections) {
  HttpClient idle(port_->port()), busy(port_->port());
  EXPECT_EQ(idle.Ask("GET", "/healthz").field("Connection"), "");
  busy.Send("GET /healthz HTTP/1.1\r\n");
  port_->AnnounceDrain();
  busy.Send("\r\n");
  EXPECT_EQ(busy.Read().field("Connection"), "close");
  EXPECT_TRUE(busy.Ended());
  EXPECT_EQ(Ask("GET /nothing HTTP/1.1\r\n\r\n").field("Connection"), "close") << "a new one";
  port_->StopListening();
  const HttpReply last = idle.Ask("GET", "/healthz");
  EXPECT_EQ(last.code, 200);
  EXPECT_EQ(last.field("Connection"), "close");
  EXPECT_TRUE(idle.Ended());
}

// The kernel resets those that are not taken.
TEST_F(HttpPortTest, ConnectionsThatWaitForThePortAreServedWhenItCloses) {
  port_ = HttpPort::Open(OptionsOf("127.0.0.1:0"), routes_).value();
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 32; ++i) {
    waiting.push_back(std::make_unique<HttpClient>(port_->port()));
    waiting.back()->Send("GET /healthz HTTP/1.1\r\n\r\n");
  }
  port_->Start();
  port_->AnnounceDrain();
  port_->StopListening();
  port_->Drain();
  for (const auto& client : waiting) {
    EXPECT_EQ(client->Read().code, 200);
    EXPECT_TRUE(client->Ended());
  }
  bool refused = false;
  HttpClient late(port_->port(), 1, &refused);
  EXPECT_TRUE(refused);
}

TEST_F(HttpPortTest, ADrainClosesIdleConnectionsAndTheOthersAfterTheirAnswer) {
  HttpClient idle(port_->port());
  EXPECT_EQ(idle.Ask("GET", "/healthz").code, 200);
  HttpClient busy(port_->port());
  EXPECT_EQ(busy.Ask("GET", "/healthz").code, 200);
  busy.Send("GET /healthz HTTP/1.1\r\n");
  EXPECT_EQ(idle.Ask("GET", "/healthz").code, 200);  // by the thread that has read the half head before
  port_->AnnounceDrain();
  port_->StopListening();
  port_->Drain();
  EXPECT_TRUE(idle.Ended());
  busy.Send("\r\n");
  EXPECT_EQ(busy.Read().field("Connection"), "close");
  EXPECT_TRUE(busy.Ended());
}

TEST_F(HttpPortTest, ATakenPortAndABadAddressAreErrors) {
  EXPECT_EQ(HttpPort::Open(OptionsOf("127.0.0.1:" + std::to_string(port_->port())), routes_).status().code(),
            absl::StatusCode::kAlreadyExists);
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "nohost:80"}) {
    EXPECT_EQ(HttpPort::Open(OptionsOf(bad), routes_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace edgewise::server
