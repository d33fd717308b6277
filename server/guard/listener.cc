#include "server/guard/listener.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "server/base/address.h"
#include "server/observe/log.h"

namespace edgewise::server {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kDropBytes = size_t{1} << 24;
constexpr int kPauseMilliseconds = 100;                          // after running out of descriptors
constexpr auto kLastHandshakes = std::chrono::milliseconds(10);  // some round trips
constexpr int kMeasuredAtOnce = 256;                             // connections
constexpr auto kShortWait = std::chrono::milliseconds(5);
constexpr uint64_t kLittleUnread = 1024, kMuchUnread = 4096;  // bytes
constexpr uint64_t kMostCounted = 16384;  // of a connection: one with a large message brings no more calls than others

absl::Status NotUsable(const std::string& address) {
  return absl::AlreadyExistsError(
      absl::StrCat("--listen=", address, ": the port is taken, or the address is not usable"));
}

// The inode of the socket behind a descriptor; 0: none.
ino_t SocketOf(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

uint64_t ReceivedOf(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

uint64_t UnconfirmedOf(int descriptor) {
  int bytes = 0;
  return ioctl(descriptor, SIOCOUTQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

uint64_t UnreadOf(int descriptor) {
  int bytes = 0;
  return ioctl(descriptor, SIOCINQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

// Drops what is not read. gRPC finds the connection ended, and closes it.
void End(int descriptor) {
  shutdown(descriptor, SHUT_RDWR);
  while (recv(descriptor, nullptr, kDropBytes, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

using Address = std::array<uint8_t, 16>;

Address MappedIpv4(const in_addr& address) {
  Address mapped{};
  mapped[10] = mapped[11] = 0xFF;
  std::memcpy(mapped.data() + 12, &address, 4);
  return mapped;
}

// "ipv4:192.0.2.1:1234" or "ipv6:%5B2001:db8::1%5D:1234". Port 0: it is another kind of address.
std::pair<Address, uint16_t> ParsePeer(const std::string& peer) {
  const std::string text = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const std::string::size_type colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon < 5 || !absl::SimpleAtoi(text.substr(colon + 1), &port)) return {};
  std::string host = text.substr(5, colon - 5);
  if (in_addr ipv4; inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return {MappedIpv4(ipv4), port};
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.find_first_of("%]") - 1);
  Address ipv6{};
  return inet_pton(AF_INET6, host.c_str(), ipv6.data()) == 1 ? std::pair(ipv6, static_cast<uint16_t>(port))
                                                             : std::pair(Address{}, uint16_t{0});
}

}  // namespace

void EndHandshakes(const std::vector<int>& listeners) {
  // Drops every segment with the flag SYN, which is 2 in byte 13 of TCP's header. A client sends it again after a
  // second, and is refused then.
  sock_filter drop_syn[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 2, 0, 1),
                            BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF)};
  const sock_fprog program{static_cast<uint16_t>(std::size(drop_syn)), drop_syn};
  for (const int listener : listeners) {
    setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  }
  if (!listeners.empty()) std::this_thread::sleep_for(kLastHandshakes);
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address, ConnectionLimits limits) {
  std::unique_ptr<Listener> listener(new Listener(limits));
  RETURN_IF_ERROR(listener->Listen(address));
  return listener;
}

absl::Status Listener::Listen(const std::string& address) {
  ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort("--listen", address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host_port.host.c_str(), "0", &hints, &found) != 0) return NotUsable(address);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  stop_ = eventfd(0, EFD_CLOEXEC);
  port_ = host_port.port;
  for (addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
    const int listener = socket(next->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) continue;  // no IPv6 here
    listeners_.push_back(listener);
    const int on = 1, off = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (next->ai_family == AF_INET6) setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    // sin_port and sin6_port lie at the same place.
    reinterpret_cast<sockaddr_in*>(next->ai_addr)->sin_port = htons(static_cast<uint16_t>(port_));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (bind(listener, next->ai_addr, next->ai_addrlen) != 0 || listen(listener, kBacklog) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
      return NotUsable(address);
    }
    port_ = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  }
  return listeners_.empty() ? NotUsable(address) : absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  if (stop_ >= 0) close(stop_);
}

void Listener::Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server) {
  server_ = std::move(server);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  EndHandshakes(listeners_);
  const uint64_t one = 1;
  if (thread_.joinable() && write(stop_, &one, sizeof one) == sizeof one) thread_.join();
  for (const int listener : std::exchange(listeners_, {})) close(listener);
}

void Listener::Run() {
  std::vector<pollfd> events;
  for (const int listener : listeners_) events.push_back({listener, POLLIN, 0});
  events.push_back({stop_, POLLIN, 0});
  bool paused = false;
  while (true) {
    // A pause looks at the last entry only.
    pollfd* const first = paused ? &events.back() : events.data();
    const nfds_t count = paused ? 1 : events.size();
    poll(first, count, paused ? kPauseMilliseconds : -1);
    if (events.back().revents != 0) {
      for (const int listener : listeners_) Accept(listener);  // the kernel resets those that still wait
      return;
    }
    const bool was_paused = std::exchange(paused, false);
    for (const pollfd& event : events) {
      if (event.revents != 0 && !Accept(event.fd)) paused = true;
    }
    if (paused && !was_paused) Log(LogLevel::kWarning, "connections wait", {{"reason", out_of_}});
  }
}

bool Listener::Accept(int listener) {
  while (true) {
    if (hold_.load()) {
      out_of_ = "calls hold more memory than they may";
      return false;
    }
    const bool rationed = ration_.load() < LostCalls::kAnyNumber;
    if (ration_.load() <= 0) {
      out_of_ = "calls are read too late";
      return false;
    }
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int descriptor =
        accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        out_of_ = std::strerror(errno);
        return false;
      }
      continue;  // that connection is gone already
    }
    if (rationed && UnreadOf(descriptor) >= kMuchUnread) {
      End(descriptor);
      close(descriptor);
      continue;
    }
    if (rationed) ration_.fetch_sub(1);
    Peer peer{};
    if (address.ss_family == AF_INET6) {
      std::memcpy(peer.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
    } else {
      peer = MappedIpv4(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
    }
    // sin_port and sin6_port lie at the same place.
    const uint16_t port = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    {
      const absl::MutexLock lock(&mutex_);
      if (!HasRoom(peer)) {
        close(descriptor);
        continue;
      }
      const auto old = connections_.find(descriptor);  // closed since, or the descriptor were not free
      if (old != connections_.end()) Forget(old);
      connections_[descriptor] = {SocketOf(descriptor), {peer, port}};
      ++peers_[peer];
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = descriptor;
    server_->HandleNewConnection(&connection);
  }
}

bool Listener::HasRoom(const Peer& peer) {
  const auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto same = peers_.find(peer);
    return connections_.size() >= limits_.in_all || (same != peers_.end() && same->second >= limits_.per_peer);
  };
  if (!full()) return true;
  ForgetClosed();
  return !full();
}

void Listener::Forget(std::map<int, Connection>::iterator connection) {
  const auto peer = peers_.find(connection->second.from.first);
  if (--peer->second == 0) peers_.erase(peer);
  waits_.erase(connection->second.from);
  connections_.erase(connection);
}

void Listener::ForgetClosed() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    if (SocketOf(connection->first) != connection->second.socket) Forget(connection);
  }
}

void Listener::MarkTraffic() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  for (auto& [descriptor, connection] : connections_) connection.marked = ReceivedOf(descriptor);
}

bool Listener::CloseBusiest() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  int busiest = -1;
  uint64_t most = 0;
  for (auto& [descriptor, connection] : connections_) {
    const uint64_t received = ReceivedOf(descriptor);
    const uint64_t fresh = received - std::min(received, connection.marked);
    connection.marked = received;
    if (fresh <= most) continue;
    most = fresh;
    busiest = descriptor;
  }
  if (busiest < 0) return false;
  End(busiest);
  return true;
}

int Listener::CloseLate(double part, Clock::duration limit) {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  std::vector<std::pair<uint64_t, int>> late;  // bytes, descriptor
  uint64_t unread = 0, dropped = 0;
  for (const auto& [descriptor, connection] : connections_) {
    const uint64_t bytes = std::min(UnreadOf(descriptor), kMostCounted);
    unread += bytes;
    if (bytes >= kLittleUnread && connection.age >= limit) late.emplace_back(bytes, descriptor);
  }
  std::sort(late.rbegin(), late.rend());
  int closed = 0;
  for (const auto& [bytes, descriptor] : late) {
    if (static_cast<double>(dropped) >= part * static_cast<double>(unread)) break;
    dropped += bytes;
    End(descriptor);
    Connection& connection = connections_.at(descriptor);
    connection.unread = {};
    connection.age = {};
    ++closed;
  }
  return closed;
}

uint64_t Listener::Unconfirmed(const std::string& peer) {
  const PeerPort from = ParsePeer(peer);
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  for (const auto& [descriptor, connection] : connections_) {
    if (connection.from == from) return UnconfirmedOf(descriptor);
  }
  return 0;
}

uint64_t Listener::Unconfirmed() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  uint64_t bytes = 0;
  for (const auto& [descriptor, connection] : connections_) bytes += UnconfirmedOf(descriptor);
  return bytes;
}

void Listener::MeasureWaits(Time now) {
  const absl::MutexLock lock(&mutex_);
  auto next = connections_.upper_bound(measured_);
  for (size_t looked = std::min<size_t>(connections_.size(), kMeasuredAtOnce); looked > 0; --looked) {
    if (next == connections_.end()) next = connections_.begin();
    auto& [descriptor, connection] = *next++;
    measured_ = descriptor;
    const uint64_t unread = UnreadOf(descriptor);
    if (unread == 0 && connection.unread.idle() && !connection.waits) continue;  // most, most of the time
    if (SocketOf(descriptor) != connection.socket) continue;
    const Clock::duration before = connection.age;
    connection.age = connection.unread.Observe(now, unread > 0 ? ReceivedOf(descriptor) : 0, unread);
    // Bytes that were unread at the last look may be being read now.
    const Clock::duration waited = std::max(before, connection.age);
    connection.waits = waited >= kShortWait;
    if (connection.waits) {
      waits_[connection.from] = waited;
    } else {
      waits_.erase(connection.from);
    }
  }
  behind_ = !waits_.empty();
}

Clock::duration Listener::Waited(const std::string& peer) {
  if (!behind_.load(std::memory_order_relaxed)) return {};
  const absl::MutexLock lock(&mutex_);
  const auto found = waits_.find(ParsePeer(peer));
  return found == waits_.end() ? Clock::duration() : found->second;
}

Clock::duration Listener::LongestWait() {
  const absl::MutexLock lock(&mutex_);
  Clock::duration longest{};
  for (const auto& [peer, waited] : waits_) longest = std::max(longest, waited);
  return longest;
}

size_t Listener::connections() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  return connections_.size();
}

}  // namespace edgewise::server
