// What gRPC's specification of its protocol says of bytes that no client library of gRPC sends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

// One call over a connection of its own.
class Exchange {
 public:
  // `body`: the frames of gRPC. Waits for the end.
  Exchange(int port, const std::string& path, const Headers& more, std::string body) : body_(std::move(body)) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval hang{.tv_sec = 30};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof hang);
    Open();
    Headers headers = {{":method", "POST"},
                       {":scheme", "http"},
                       {":path", path},
                       {":authority", "localhost"},
                       {"content-type", "application/grpc"},
                       {"te", "trailers"}};
    headers.insert(headers.end(), more.begin(), more.end());
    Submit(headers);
    Run();
  }
  ~Exchange() {
    nghttp2_session_del(session_);
    close(socket_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // A header or trailer of the answer; empty: there is none.
  std::string operator[](const std::string& name) const {
    const auto found = answer_.find(name);
    return found == answer_.end() ? "" : found->second;
  }

 private:
  void Open() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_send_callback(
        callbacks, [](nghttp2_session*, const uint8_t* data, size_t size, int, void* user) -> ssize_t {
          return send(static_cast<Exchange*>(user)->socket_, data, size, MSG_NOSIGNAL);
        });
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
                      const uint8_t* value, size_t value_size, uint8_t, void* user) {
          static_cast<Exchange*>(user)->answer_[{reinterpret_cast<const char*>(name), name_size}] = {
              reinterpret_cast<const char*>(value), value_size};
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks,
                                                           [](nghttp2_session*, int32_t, uint32_t, void* user) {
                                                             static_cast<Exchange*>(user)->ended_ = true;
                                                             return 0;
                                                           });
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }

  void Submit(const Headers& headers) {
    std::vector<nghttp2_nv> fields;
    const auto bytes = [](const std::string& text) {
      return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
    };
    for (const auto& [name, value] : headers) {
      fields.push_back({bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    nghttp2_data_provider body{};
    body.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t room, uint32_t* flags, nghttp2_data_source*,
                            void* user) -> ssize_t {
      auto& self = *static_cast<Exchange*>(user);
      const size_t size = std::min(room, self.body_.size());
      std::memcpy(to, self.body_.data(), size);
      self.body_.erase(0, size);
      if (self.body_.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(size);
    };
    EXPECT_GT(nghttp2_submit_request(session_, nullptr, fields.data(), fields.size(), &body, nullptr), 0);
  }

  void Run() {
    uint8_t data[4096];
    while (!ended_) {
      ASSERT_EQ(nghttp2_session_send(session_), 0);
      const ssize_t size = recv(socket_, data, sizeof data, 0);
      ASSERT_GT(size, 0) << "the server closes the connection, or is silent";
      ASSERT_GE(nghttp2_session_mem_recv(session_, data, static_cast<size_t>(size)), 0);
    }
  }

  int socket_ = -1;
  nghttp2_session* session_ = nullptr;
  std::string body_;
  std::map<std::string, std::string> answer_;
  bool ended_ = false;
};

constexpr char kPredict[] = "/edgewise.v1.InferenceService/Predict";
constexpr char kStream[] = "/edgewise.v1.InferenceService/PredictStream";

std::string Framed(const google::protobuf::Message& message, bool compressed = false) {
  const std::string bytes = message.SerializeAsString();
  const uint32_t size = htonl(static_cast<uint32_t>(bytes.size()));
  return std::string(1, compressed ? 1 : 0) + std::string(reinterpret_cast<const char*>(&size), 4) + bytes;
}

class ProtocolTest : public ::testing::Test {
 protected:
  // The code that a call of one message ends with.
  std::string CodeOf(const Headers& headers, bool compressed = false, const char* path = kPredict) {
    return Exchange(server_.server().port(), path, headers, Framed(SmallRequest(), compressed))["grpc-status"];
  }

  TestServer server_;
};

const std::string kOk = "0", kUnimplemented = "12", kInternal = "13";

TEST_F(ProtocolTest, R42TheLongestTimeoutsAreServed) {
  EXPECT_EQ(CodeOf({}), kOk);
  for (const char* timeout : {"99999999H", "99999999M", "99999999S", "10000000H", "60S"}) {
    EXPECT_EQ(CodeOf({{"grpc-timeout", timeout}}), kOk) << timeout;
    EXPECT_EQ(CodeOf({{"grpc-timeout", timeout}}, false, kStream), kOk) << timeout;
  }
}

// gRPC 1.51 hands over such a message as it is.
TEST_F(ProtocolTest, R37CompressedMessageWithoutAKnownEncodingIsInternal) {
  EXPECT_EQ(CodeOf({}, true), kInternal);
  EXPECT_EQ(CodeOf({{"grpc-encoding", "identity"}}, true), kInternal);
  EXPECT_EQ(CodeOf({{"grpc-encoding", "zstd9"}}, true), kInternal);
  EXPECT_EQ(CodeOf({{"grpc-encoding", "gzip"}}, true), kUnimplemented);
  EXPECT_EQ(CodeOf({{"grpc-encoding", "identity"}}), kOk) << "the next one, not compressed";
}

}  // namespace
}  // namespace edgewise::server
