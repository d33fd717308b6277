// A client of HTTP/1.1 on loopback: sends what a test says, byte for byte, and reads answers whole. tls_client.h has it
// over TLS.
#ifndef EDGEWISE_TESTS_SERVER_HTTP_CLIENT_H_
#define EDGEWISE_TESTS_SERVER_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <random>
#include <string>

namespace edgewise::server {

struct HttpReply {
  int code = 0;  // 0: the connection ended without an answer
  std::string head;
  std::string body;

  // The value of a field; empty: the answer has none.
  std::string field(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class HttpClient {
 public:
  // `host`: the client's address is 127.0.0.`host`. `refused`: whether the port refuses the connection, which is an
  // error of the test without it.
  explicit HttpClient(int port, uint32_t host = 1, bool* refused = nullptr) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval timeout{60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    if (host != 1) {
      EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool connected = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    EXPECT_TRUE(connected || (refused != nullptr && errno == ECONNREFUSED)) << errno;
    if (refused != nullptr) *refused = !connected;
  }
  virtual ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // False: the server has closed the connection.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = WriteSome(bytes.data() + sent, bytes.size() - sent);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  // The next answer. `no_body`: to HEAD.
  HttpReply Read(bool no_body = false) {
    HttpReply reply;
    size_t end;
    while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
      if (!More()) return reply;
    }
    reply.head = read_.substr(0, end + 2);
    read_.erase(0, end + 4);
    reply.code = std::atoi(reply.head.c_str() + 9);
    if (no_body || reply.code == 204 || reply.code == 304 || reply.code == 100) return reply;
    if (reply.field("Transfer-Encoding") == "chunked") {
      for (std::string chunk; NextChunk(&chunk) && !chunk.empty();) reply.body += chunk;
    } else if (const std::string length = reply.field("Content-Length"); !length.empty()) {
      const auto size = static_cast<size_t>(std::atoll(length.c_str()));
      while (read_.size() < size && More()) {
      }
      reply.body = read_.substr(0, size);
      read_.erase(0, size);
    } else {
      while (More()) {
      }
      reply.body = std::exchange(read_, "");
    }
    return reply;
  }
  // The head of an answer in chunks, and each chunk; empty: the last. False: the connection has ended.
  std::string ReadHead() {
    size_t end;
    while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
      if (!More()) return "";
    }
    const std::string head = read_.substr(0, end + 2);
    read_.erase(0, end + 4);
    return head;
  }
  bool NextChunk(std::string* chunk) {
    chunk->clear();
    size_t line;
    while ((line = read_.find("\r\n")) == std::string::npos) {
      if (!More()) return false;
    }
    const size_t size = std::strtoul(read_.c_str(), nullptr, 16);
    while (read_.size() < line + 2 + size + 2) {
      if (!More()) return false;
    }
    *chunk = read_.substr(line + 2, size);
    read_.erase(0, line + 2 + size + 2);
    return true;
  }
  // Whether the server ends the connection without another byte.
  bool Ended() {
    const bool more = More();
    return !more && read_.empty();
  }

  HttpReply Ask(const std::string& method, const std::string& path, const std::string& fields = "") {
    Send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
    return Read(method == "HEAD");
  }
  HttpReply Post(const std::string& path, const std::string& json, const std::string& fields = "") {
    Send(Posted(path, json, fields));
    return Read();
  }
  static std::string Posted(const std::string& path, const std::string& json, const std::string& fields = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(json.size()) + "\r\n" + fields + "\r\n" + json;
  }

 protected:
  // As send and recv.
  virtual ssize_t WriteSome(const char* bytes, size_t size) { return send(fd_, bytes, size, MSG_NOSIGNAL); }
  virtual ssize_t ReadSome(char* bytes, size_t size) { return recv(fd_, bytes, size, 0); }

 private:
  bool More() {
    char buffer[16384];
    ssize_t n;
    do {
      n = ReadSome(buffer, sizeof buffer);
    } while (n < 0 && errno == EINTR);  // a fuzzer's timer
    EXPECT_TRUE(n >= 0 || errno == ECONNRESET) << "the server said nothing for 60 s: errno " << errno;
    if (n > 0) read_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  std::string read_;
};

// The bytes with one to four changes: a byte, some left out, some twice.
inline std::string Damaged(std::string bytes, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, random() % 8);
        break;
      default:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 8));
    }
  }
  return bytes;
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_HTTP_CLIENT_H_
