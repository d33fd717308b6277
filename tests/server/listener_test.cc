#include "server/rpc/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/wait_until.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

// Takes connections as gRPC does, and reads nothing by itself.
class Acceptor final : public grpc::experimental::ExternalConnectionAcceptor {
 public:
  explicit Acceptor(std::atomic<int>& accepted) : accepted_(accepted) {}
  void HandleNewConnection(NewConnectionParameters* connection) override { accepted_ = connection->fd; }

 private:
  std::atomic<int>& accepted_;
};

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    listener_ = *Listener::Open("127.0.0.1:0", {});
    listener_->Start(std::make_unique<Acceptor>(accepted_));
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(listener_->port()))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_TRUE(WaitUntil("a connection", [this] { return accepted_ >= 0; }));
    socklen_t size = sizeof address;
    getsockname(client_, reinterpret_cast<sockaddr*>(&address), &size);
    peer_ = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  }
  ~ListenerTest() override {
    close(client_);
    if (accepted_ >= 0) close(accepted_);
  }

  void Look(int ms) { listener_->MeasureWaits(Time(milliseconds(ms))); }

  std::atomic<int> accepted_ = -1;
  std::unique_ptr<Listener> listener_;
  int client_ = -1;
  std::string peer_;  // as gRPC names it
};

TEST_F(ListenerTest, MeasuresHowLongAConnectionIsNotRead) {
  Look(0);
  EXPECT_FALSE(listener_->behind());
  ASSERT_EQ(send(client_, "abcd", 4, 0), 4);
  Look(10);
  EXPECT_FALSE(listener_->behind());
  Look(40);
  EXPECT_TRUE(listener_->behind());
  EXPECT_EQ(listener_->Waited(peer_), milliseconds(30));
  EXPECT_EQ(listener_->LongestWait(), milliseconds(30));
  EXPECT_EQ(listener_->Waited("ipv4:127.0.0.2" + peer_.substr(peer_.rfind(':'))), milliseconds(0));
  EXPECT_EQ(listener_->Waited("unix:/tmp/a:1"), milliseconds(0));

  char bytes[4];
  ASSERT_EQ(recv(accepted_, bytes, 4, 0), 4);
  Look(50);
  EXPECT_EQ(listener_->Waited(peer_), milliseconds(30)) << "calls among what was read are only being looked at";
  Look(60);
  EXPECT_EQ(listener_->Waited(peer_), milliseconds(0));
  EXPECT_FALSE(listener_->behind());
}

TEST_F(ListenerTest, ClosesAConnectionThatIsReadLate) {
  const std::vector<char> little(4095);
  ASSERT_EQ(send(client_, little.data(), little.size(), 0), 4095);
  Look(0);
  Look(1000);
  EXPECT_EQ(listener_->CloseLate(milliseconds(300)), 0) << "so little is soon read";
  ASSERT_EQ(send(client_, "a", 1, 0), 1);
  Look(1001);
  EXPECT_EQ(listener_->CloseLate(milliseconds(1002)), 0) << "it is younger";
  EXPECT_EQ(listener_->CloseLate(milliseconds(300)), 1);
  EXPECT_EQ(listener_->CloseLate(milliseconds(300)), 0) << "it is closed";

  char byte;
  EXPECT_EQ(recv(accepted_, &byte, 1, 0), 0) << "what waited is dropped";
  EXPECT_EQ(recv(client_, &byte, 1, 0), 0);
}

TEST_F(ListenerTest, KnowsWhatAPeerHasNotConfirmed) {
  EXPECT_EQ(listener_->Unconfirmed(peer_), 0u);
  const std::vector<char> bytes(1 << 16);
  while (send(accepted_, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_GT(listener_->Unconfirmed(peer_), 0u) << "the buffers of both sides are full";
  EXPECT_EQ(listener_->Unconfirmed(), listener_->Unconfirmed(peer_));
  EXPECT_EQ(listener_->Unconfirmed("ipv6:%5B::1%5D:1"), 0u);
  std::vector<char> read(1 << 20);
  EXPECT_TRUE(WaitUntil("the client to have all", [&] {
    while (recv(client_, read.data(), read.size(), MSG_DONTWAIT) > 0) {
    }
    return listener_->Unconfirmed(peer_) == 0;
  }));
  close(accepted_.exchange(-1));
  EXPECT_EQ(listener_->Unconfirmed(peer_), 0u);
}

}  // namespace
}  // namespace edgewise::server
