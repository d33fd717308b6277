#include "server/observe/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace edgewise::server {
namespace {

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() { Start(std::chrono::hours(1)); }

  void Start(std::chrono::milliseconds timeout) {
    HttpHandlers handlers{[this] {
                            ++pages_;
                            return std::string("edgewise_up 1\n");
                          },
                          [this](std::string* json) {
                            *json = "{}";
                            return healthy_.load();
                          }};
    server_ = HttpServer::Start("127.0.0.1:0", std::move(handlers), timeout).value();
  }

  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const timeval timeout{60, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  // Everything up to the end of the connection.
  static std::string ReadAll(int fd) {
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) text.append(buffer, static_cast<size_t>(n));
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "the server did not end the connection within 60 s: errno " << errno;
    close(fd);
    return text;
  }

  std::string Exchange(const std::string& request) const {
    const int fd = Connect();
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);  // fails where the server has closed it already
    return ReadAll(fd);
  }

  // Of an answer; empty: there was none.
  static std::string Code(const std::string& answer) { return answer.size() < 12 ? "" : answer.substr(9, 3); }

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
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, ServesMetricsAsExpositionText) {
  const std::string answer = Exchange("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(answer.find("\r\n\r\nedgewise_up 1\n"), std::string::npos);
}

TEST_F(HttpTest, HealthzFollowsTheServer) {
  EXPECT_EQ(Code(Exchange("GET /healthz HTTP/1.1\r\n\r\n")), "200");
  healthy_ = false;
  EXPECT_EQ(Code(Exchange("GET /healthz HTTP/1.1\r\n\r\n")), "503");
}

// Whatever comes with it: clients of other protocols take a 413 for a text that is too long.
TEST_F(HttpTest, AnotherPathIsNotFoundAndAnotherMethodNotAllowed) {
  const std::string body = "Content-Length: 5\r\n\r\nhello",
                    chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
  for (const char* method : {"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string start = std::string(method) + " ";
    for (const std::string& rest : {std::string("\r\n"), body, chunked}) {
      const std::string unknown = Exchange(start + "/v1/embeddings HTTP/1.1\r\n" + rest);
      EXPECT_EQ(Code(unknown), "404") << method;
      EXPECT_NE(unknown.find("there are /metrics and /healthz"), std::string::npos);
      for (const char* path : {"/metrics", "/healthz?x=1"}) {
        const std::string answer = Exchange(start + path + " HTTP/1.1\r\n" + rest);
        if (std::string(method) == "GET") {
          EXPECT_EQ(Code(answer), rest == "\r\n" ? "200" : "413") << rest;
        } else {
          EXPECT_EQ(Code(answer), "405") << method;
          EXPECT_NE(answer.find("\r\nAllow: GET, HEAD\r\n"), std::string::npos) << answer;
        }
      }
    }
  }
  EXPECT_EQ(Code(Exchange("GET /../etc/passwd HTTP/1.1\r\n\r\n")), "404");
  EXPECT_EQ(Code(Exchange("garbage\r\n\r\n")), "400");
}

// A reset would take the answer with it.
TEST_F(HttpTest, ARefusedBodyDoesNotCostTheAnswer) {
  const std::string body(900 << 10, 'x');
  EXPECT_EQ(
      Code(Exchange("POST /v1/chat HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body)),
      "404");
}

TEST_F(HttpTest, HeadAnswersAsGetDoesWithoutABody) {
  for (const char* path : {"/metrics", "/healthz", "/nothing"}) {
    const std::string get = Exchange(std::string("GET ") + path + " HTTP/1.1\r\n\r\n");
    const std::string head = Exchange(std::string("HEAD ") + path + " HTTP/1.1\r\n\r\n");
    EXPECT_EQ(Code(head), Code(get)) << path;
    const size_t type = get.find("Content-Type: ");
    EXPECT_NE(head.find(get.substr(type, get.find('\r', type) - type)), std::string::npos) << head;
    EXPECT_EQ(head.substr(head.size() - 4), "\r\n\r\n") << head;
  }
  EXPECT_EQ(pages_, 1) << "HEAD makes no page";
}

TEST_F(HttpTest, MetricsAreCompressedForThoseWhoTakeIt) {
  const auto answer = [&](const std::string& accepted) {
    return Exchange("GET /metrics HTTP/1.1\r\n" + accepted + "\r\n");
  };
  const std::string plain = answer("");
  EXPECT_EQ(plain.find("Content-Encoding"), std::string::npos);
  for (const char* accepted : {"Accept-Encoding: gzip\r\n", "Accept-Encoding: deflate, GZIP;q=0.5 ,br\r\n",
                               "accept-encoding: br\r\nAccept-Encoding: gzip;q=1.0\r\n"}) {
    const std::string packed = answer(accepted);
    EXPECT_NE(packed.find("\r\nContent-Encoding: gzip\r\n"), std::string::npos) << accepted;
    EXPECT_NE(packed.find("\r\nVary: Accept-Encoding\r\n"), std::string::npos) << accepted;
    const std::string body = packed.substr(packed.find("\r\n\r\n") + 4);
    EXPECT_NE(packed.find("\r\nContent-Length: " + std::to_string(body.size()) + "\r\n"), std::string::npos);
    EXPECT_EQ(Unzipped(body), "edgewise_up 1\n");
  }
  for (const char* accepted : {"Accept-Encoding: gzip;q=0\r\n", "Accept-Encoding: gzip;q=x\r\n",
                               "Accept-Encoding: identity\r\n", "Accept-Encoding: xgzip\r\n", "Accept-Encoding:\r\n"}) {
    EXPECT_EQ(answer(accepted), plain) << accepted;
  }
}

TEST_F(HttpTest, HeaderOver8KiBIsCut) {
  const std::string answer = Exchange("GET /metrics HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n");
  EXPECT_TRUE(answer.empty() || Code(answer) == "431") << answer.substr(0, 40);
  EXPECT_EQ(Code(Exchange("GET /metrics HTTP/1.1\r\n\r\n")), "200");
}

TEST_F(HttpTest, SilentConnectionIsClosedOnceItsTimeIsOver) {
  const int patient = Connect();
  EXPECT_EQ(Code(Exchange("GET /healthz HTTP/1.1\r\n\r\n")), "200");
  char byte;
  EXPECT_EQ(recv(patient, &byte, 1, MSG_DONTWAIT), -1) << "it has an hour";
  close(patient);
  Start(std::chrono::milliseconds(50));
  EXPECT_EQ(ReadAll(Connect()), "");
}

TEST_F(HttpTest, IdleConnectionsAreBoundedAndMakeRoomAgain) {
  std::vector<int> idle;
  for (int i = 0; i < 64; ++i) idle.push_back(Connect());
  EXPECT_EQ(Exchange("GET /metrics HTTP/1.1\r\n\r\n"), "");  // closed at once
  for (int fd : idle) close(fd);
  std::string answer;  // once the server has seen that they ended
  for (int tries = 0; tries < 3000 && answer.empty(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    answer = Exchange("GET /metrics HTTP/1.1\r\n\r\n");
  }
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK");
}

TEST_F(HttpTest, TakenPortAndBadAddressAreErrors) {
  EXPECT_EQ(HttpServer::Start("127.0.0.1:" + std::to_string(server_->port()), {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "nohost:80"}) {
    EXPECT_EQ(HttpServer::Start(bad, {}).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace edgewise::server
