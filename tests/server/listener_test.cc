#include "server/guard/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/server/wait_until.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    listener_ = *Listener::Open("127.0.0.1:0", {});
    listener_->Start([this](const Listener::Accepted& accepted) { accepted_ = accepted.descriptor; });
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
    listener->Start([this](const Listener::Accepted& accepted) { accepted_ = accepted.descriptor; });
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

// A port whose connections nobody reads, with clients at several addresses of this machine.
class CrowdedPort {
 public:
  explicit CrowdedPort(ConnectionLimits limits, Listener::Front front = Listener::Front::kGrpc)
      : listener_(*Listener::Open("127.0.0.1:0", limits, "--listen", front)) {
    listener_->Start([this](const Listener::Accepted& accepted) {
      const absl::MutexLock lock(&mutex_);
      accepted_.push_back(accepted);
    });
  }
  ~CrowdedPort() {
    listener_->Stop();
    for (const int client : clients_) close(client);
    const absl::MutexLock lock(&mutex_);
    for (const Listener::Accepted& accepted : accepted_) close(accepted.descriptor);
  }

  Listener& listener() { return *listener_; }
  // A client at 127.0.0.`host`, whose connection may not be accepted yet.
  int Knock(int host) {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    clients_.push_back(client);
    sockaddr_in from{.sin_family = AF_INET}, to{.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + static_cast<uint32_t>(host));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    EXPECT_EQ(bind(client, reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return client;
  }
  int Connect(int host) {
    const size_t before = accepted();
    const int client = Knock(host);
    EXPECT_TRUE(WaitUntil("a connection", [&] { return accepted() > before; }));
    return client;
  }
  void Close(int client) {
    close(client);
    clients_.erase(std::find(clients_.begin(), clients_.end(), client));
  }
  size_t accepted() {
    const absl::MutexLock lock(&mutex_);
    return accepted_.size();
  }
  Listener::Accepted last() {
    const absl::MutexLock lock(&mutex_);
    return accepted_.back();
  }
  // As gRPC does with connections that have ended.
  void CloseEnded() {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(accepted_, [](const Listener::Accepted& accepted) {
      char byte;
      return recv(accepted.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 && close(accepted.descriptor) == 0;
    });
  }

 private:
  absl::Mutex mutex_;
  std::vector<Listener::Accepted> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> clients_;
  const std::unique_ptr<Listener> listener_;
};

bool IsOpen(int client) {
  char byte;
  return recv(client, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

TEST(CrowdedPortTest, AnIdleConnectionOfThePeerWithMostGivesWay) {
  CrowdedPort port({.in_all = 4});
  const int busy = port.Connect(2);
  const uint64_t call = port.last().connection;
  port.listener().table().Begin(call);
  const int alone = port.Connect(3), older = port.Connect(2), younger = port.Connect(2);
  const int next = port.Connect(4);
  EXPECT_TRUE(WaitUntil("the oldest idle one of 127.0.0.2 to end", [&] { return !IsOpen(older); }));
  port.CloseEnded();
  EXPECT_TRUE(IsOpen(busy) && IsOpen(alone) && IsOpen(younger) && IsOpen(next));
  port.listener().table().End(call);
  port.Connect(4);
  EXPECT_TRUE(WaitUntil("the next one of 127.0.0.2 to end", [&] { return !IsOpen(younger); }));
  EXPECT_TRUE(IsOpen(busy)) << "it has become idle last";
}

TEST(CrowdedPortTest, OnePeerDoesNotDriveOutOthersBeyondItsLimit) {
  CrowdedPort port({.in_all = 4, .per_peer = 2});
  const int other = port.Connect(2);
  port.Connect(3);
  port.Connect(3);
  const int third = port.Knock(3);
  EXPECT_TRUE(WaitUntil("the third one to end", [&] { return !IsOpen(third); }));
  EXPECT_TRUE(IsOpen(other));
  EXPECT_EQ(port.accepted(), 3u);
}

TEST(CrowdedPortTest, WhereAllAreBusyTheNextOneIsClosed) {
  CrowdedPort port({.in_all = 1});
  const int busy = port.Connect(2);
  port.listener().table().Begin(port.last().connection);
  const int next = port.Knock(3);
  EXPECT_TRUE(WaitUntil("it to end", [&] { return !IsOpen(next); }));
  EXPECT_TRUE(IsOpen(busy));
}

TEST(CrowdedPortTest, AnAnswerThatIsOnItsWayIsNotCutOff) {
  CrowdedPort port({.in_all = 2});
  const int reader = port.Connect(2);
  const std::vector<char> answer(1 << 16);
  while (send(port.last().descriptor, answer.data(), answer.size(), MSG_DONTWAIT) > 0) {
  }
  const int silent = port.Connect(2);
  port.Connect(3);
  EXPECT_TRUE(WaitUntil("the silent one to end", [&] { return !IsOpen(silent); }));
  char byte;
  EXPECT_EQ(recv(reader, &byte, 1, MSG_DONTWAIT), 1);
}

TEST(CrowdedPortTest, AConnectionThatIsClosedMakesRoomWhetherThatIsToldOrNot) {
  CrowdedPort port({.in_all = 8, .per_peer = 2});
  port.Connect(2);
  port.listener().Closing(port.last().connection);
  port.Connect(2);
  const int third = port.Connect(2);
  const int fourth = port.Knock(2);
  EXPECT_TRUE(WaitUntil("the fourth one to end", [&] { return !IsOpen(fourth); }));
  port.Close(third);
  EXPECT_TRUE(WaitUntil("the server to close it", [&] {
    port.CloseEnded();
    return port.accepted() == 2;
  }));
  port.Connect(2);
}

// A descriptor of this process is the one that is short.
TEST(CrowdedPortTest, WithoutADescriptorAnIdleConnectionGivesWay) {
  CrowdedPort port({});
  const int busy = port.Connect(2);
  port.listener().table().Begin(port.last().connection);
  const int idle = port.Connect(2);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = port.Knock(3);  // accepted, and its descriptor is the highest
  EXPECT_TRUE(WaitUntil("a connection", [&] { return port.accepted() == 3; }));
  const int spare = socket(AF_INET, SOCK_STREAM, 0);  // for the last client
  const int lowest = dup(spare);
  close(lowest);
  const rlimit none_left{static_cast<rlim_t>(lowest), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  sockaddr_in to{.sin_family = AF_INET};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(port.listener().port()));
  EXPECT_EQ(connect(spare, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_TRUE(WaitUntil("the idle one to end", [&] { return !IsOpen(idle); }));
  EXPECT_TRUE(IsOpen(busy) && IsOpen(next));
  port.CloseEnded();
  EXPECT_TRUE(WaitUntil("its descriptor to be used", [&] { return port.accepted() == 3; }));
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(IsOpen(spare));
  close(spare);
}

TEST(CrowdedPortTest, WhoeverHasLeftInTheLineIsClosedUnread) {
  CrowdedPort port({});
  const int first = port.Connect(2);
  port.listener().Hold(true);
  const int waiting = port.Knock(2);  // at most one is accepted before the listener sees that it is held
  const auto leave = [&](bool resets, const char* bytes) {
    const int client = port.Knock(3);
    send(client, bytes, std::strlen(bytes), 0);
    const linger at_once{resets, 0};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    port.Close(client);
  };
  leave(true, "GET / HTTP/1.1\r\n");
  leave(false, "GET / HTTP/1.1\r\n");
  leave(false, "");
  std::this_thread::sleep_for(milliseconds(200));  // one that has only ended its half may wait for less
  port.listener().Hold(false);
  const int last = port.Connect(2);
  EXPECT_TRUE(WaitUntil("those that stay", [&] { return port.accepted() == 3; }));
  EXPECT_EQ(port.listener().connections(), 3u);
  EXPECT_TRUE(IsOpen(first) && IsOpen(waiting) && IsOpen(last));
}

TEST(CrowdedPortTest, BytesBehindARequestOfHttpAreNotReadLate) {
  CrowdedPort port({}, Listener::Front::kHttp);
  const int client = port.Connect(2);
  const uint64_t connection = port.last().connection;
  const std::vector<char> bytes(2000);
  ASSERT_EQ(send(client, bytes.data(), bytes.size(), 0), 2000);
  port.listener().table().Begin(connection);
  for (const int ms : {0, 1000}) port.listener().MeasureWaits(Time(milliseconds(ms)));
  EXPECT_EQ(port.listener().LongestWait(), milliseconds(0));
  EXPECT_EQ(port.listener().CloseLate(1.0, milliseconds(300)), 0);
  port.listener().table().End(connection);
  for (const int ms : {2000, 3000}) port.listener().MeasureWaits(Time(milliseconds(ms)));
  EXPECT_EQ(port.listener().CloseLate(1.0, milliseconds(300)), 1);
  EXPECT_FALSE(IsOpen(client));
}

TEST(CrowdedPortTest, StoppingTakesWhatWaits) {
  CrowdedPort port({});
  std::vector<int> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(port.Knock(2));
  port.listener().Stop();
  EXPECT_EQ(port.accepted(), 20u);
  for (const int client : clients) EXPECT_TRUE(IsOpen(client));
}

}  // namespace
}  // namespace edgewise::server
