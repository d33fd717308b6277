#include "server/guard/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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
    address_.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client_ = Connect();
    sockaddr_in own{};
    socklen_t size = sizeof own;
    getsockname(client_, reinterpret_cast<sockaddr*>(&own), &size);
    peer_ = absl::StrCat("ipv4:127.0.0.1:", ntohs(own.sin_port));
  }
  ~ListenerTest() override {
    close(client_);
    if (accepted_ >= 0) close(accepted_);
  }

  // A client whose connection has been accepted, as accepted_.
  int Connect() {
    const int before = accepted_, client = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_TRUE(WaitUntil("a connection", [&] { return accepted_ != before; }));
    return client;
  }
  void Look(int ms) { listener_->MeasureWaits(Time(milliseconds(ms))); }

  std::atomic<int> accepted_ = -1;
  std::unique_ptr<Listener> listener_;
  sockaddr_in address_{.sin_family = AF_INET};
  int client_ = -1;
  std::string peer_;  // as gRPC names it
};

TEST_F(ListenerTest, MeasuresHowLongAConnectionIsNotRead) {
  Look(0);
  EXPECT_EQ(listener_->LongestWait(), milliseconds(0));
  ASSERT_EQ(send(client_, "abcd", 4, 0), 4);
  Look(10);
  EXPECT_EQ(listener_->LongestWait(), milliseconds(0));
  Look(40);
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
  EXPECT_EQ(listener_->LongestWait(), milliseconds(0));
}

TEST_F(ListenerTest, ClosesAConnectionThatIsReadLate) {
  const std::vector<char> little(1023);
  ASSERT_EQ(send(client_, little.data(), little.size(), 0), 1023);
  Look(0);
  Look(1000);
  EXPECT_EQ(listener_->CloseLate(1.0, milliseconds(300)), 0) << "so little is soon read";
  ASSERT_EQ(send(client_, "a", 1, 0), 1);
  Look(1001);
  EXPECT_EQ(listener_->CloseLate(1.0, milliseconds(1002)), 0) << "it is younger";
  EXPECT_EQ(listener_->CloseLate(1.0, milliseconds(300)), 1);
  EXPECT_EQ(listener_->CloseLate(1.0, milliseconds(300)), 0) << "it is closed";

  char byte;
  EXPECT_EQ(recv(accepted_, &byte, 1, 0), 0) << "what waited is dropped";
  EXPECT_EQ(recv(client_, &byte, 1, 0), 0);
}

TEST_F(ListenerTest, ClosesThoseWithMostUnreadUntilThePartIsDropped) {
  std::vector<int> clients = {client_}, servers = {accepted_};
  for (int more = 0; more < 3; ++more) {
    clients.push_back(Connect());
    servers.push_back(accepted_);
  }
  const std::vector<size_t> sizes = {2000, 40000, 12000, 9000};
  for (size_t c = 0; c < clients.size(); ++c) {
    const std::vector<char> bytes(sizes[c]);
    ASSERT_EQ(send(clients[c], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  Look(0);
  Look(100);
  EXPECT_EQ(listener_->CloseLate(0.5, milliseconds(50)), 2) << "16384 of 39384 are too little, 28384 enough";
  char byte;
  EXPECT_EQ(recv(clients[1], &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(recv(clients[2], &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(recv(clients[0], &byte, 1, MSG_DONTWAIT), -1) << "it is open";
  EXPECT_EQ(recv(clients[3], &byte, 1, MSG_DONTWAIT), -1) << "it is open";
  for (size_t c = 1; c < clients.size(); ++c) {
    close(clients[c]);
    close(servers[c]);
  }
  accepted_ = servers[0];
}

TEST_F(ListenerTest, RationsConnections) {
  const int first = accepted_.exchange(-1);
  listener_->Ration(1);
  const int second = Connect();
  const int taken = accepted_.exchange(-1);
  const int third = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(third, reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
  const std::vector<char> much(4096);
  ASSERT_EQ(send(third, much.data(), much.size(), 0), 4096);
  listener_->Ration(1);
  char byte;
  EXPECT_TRUE(WaitUntil("the end of the one beyond the ration: what waits there is late already",
                        [&] { return recv(third, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET; }));
  const int fourth = Connect();
  for (const int descriptor : {first, second, taken, third, fourth}) close(descriptor);
}

TEST_F(ListenerTest, TakesConnectionsThatWaitBeforeItStops) {
  const int first = accepted_;
  for (int round = 0; round < 20; ++round) {  // its thread may be faster than Stop
    accepted_ = -1;
    const auto listener = *Listener::Open("127.0.0.1:0", {});
    address_.sin_port = htons(static_cast<uint16_t>(listener->port()));
    const int waiting = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(waiting, reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
    listener->Start(std::make_unique<Acceptor>(accepted_));
    listener->Stop();
    EXPECT_NE(accepted_, -1);
    close(waiting);
    if (accepted_ != -1) close(accepted_);
  }
  accepted_ = first;
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
