#include "server/observe/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

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
    HttpHandlers handlers{[] { return std::string("edgewise_up 1\n"); },
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

  std::atomic<bool> healthy_ = true;
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

TEST_F(HttpTest, OtherPathsMethodsAndProtocolsAreRefused) {
  EXPECT_EQ(Code(Exchange("GET /../etc/passwd HTTP/1.1\r\n\r\n")), "404");
  EXPECT_EQ(Code(Exchange("DELETE /metrics HTTP/1.1\r\n\r\n")), "405");
  EXPECT_EQ(Code(Exchange("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")), "413");
  EXPECT_EQ(Code(Exchange("garbage\r\n\r\n")), "400");
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
