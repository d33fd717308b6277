#include "server/guard/listener.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
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
constexpr std::chrono::milliseconds kPause{100};  // after running out of descriptors
constexpr std::chrono::milliseconds kClosing{2};  // until a connection that has been ended is closed, usually
constexpr size_t kMostEnding = 16;                // connections: below the descriptors that are left for other things
constexpr int kMostAnswering = 64;                // connections that are looked at for one that gives way
constexpr int kPartOfSearches = 8;                // of the time at most goes into searches for closed connections
constexpr auto kLastHandshakes = std::chrono::milliseconds(10);  // some round trips
constexpr int kMeasuredAtOnce = 256;                             // connections
constexpr std::chrono::milliseconds kLate{100};                  // in the kernel's queue
constexpr uint8_t kClosed = 7, kCloseWait = 8;  // tcp_info::tcpi_state; the kernel's headers do not name them
constexpr auto kShortWait = std::chrono::milliseconds(5);
constexpr uint64_t kLittleUnread = 1024, kMuchUnread = 4096;  // bytes
constexpr uint64_t kMostCounted = 16384;  // of a connection: one with a large message brings no more calls than others

absl::Status NotUsable(const std::string& flag, const std::string& address, const char* why) {
  return absl::AlreadyExistsError(absl::StrCat(flag, "=", address, ": ", why));
}

// The inode of the socket behind a descriptor; 0: none.
ino_t SocketOf(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

tcp_info InfoOf(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size);
  return info;
}

uint64_t ReceivedOf(int descriptor) { return InfoOf(descriptor).tcpi_bytes_received; }

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

// Whether the client of a connection that has just been accepted has left. One that has only ended its own half looks
// the same until something is sent, so it is believed to have left once it has waited for long.
bool HasLeft(int descriptor) {
  const tcp_info info = InfoOf(descriptor);
  if (info.tcpi_state == kClosed) return true;
  const std::chrono::milliseconds waited(info.tcpi_last_data_sent);  // since it was made: nothing has been sent
  return info.tcpi_state == kCloseWait && (waited >= kLate || UnreadOf(descriptor) == 0);
}

Ipv6Address MappedIpv4(const in_addr& address) {
  Ipv6Address mapped{};
  mapped[10] = mapped[11] = 0xFF;
  std::memcpy(mapped.data() + 12, &address, 4);
  return mapped;
}

// "ipv4:192.0.2.1:1234" or "ipv6:%5B2001:db8::1%5D:1234". Port 0: it is another kind of address.
Endpoint ParsePeer(const std::string& peer) {
  const bool escaped = peer.find('%') != std::string::npos;
  const std::string text = escaped ? absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}}) : peer;
  const std::string::size_type colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon < 5 || !absl::SimpleAtoi(text.substr(colon + 1), &port)) return {};
  std::string host = text.substr(5, colon - 5);
  if (in_addr ipv4; inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return {MappedIpv4(ipv4), port};
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.find_first_of("%]") - 1);
  Ipv6Address ipv6{};
  return inet_pton(AF_INET6, host.c_str(), ipv6.data()) == 1 ? Endpoint(ipv6, port) : Endpoint();
}

// No connection of these ports begins any more, and those that were about to begin wait to be accepted. The kernel
// resets all that wait when a port closes. Takes 10 ms.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address, ConnectionLimits limits,
                                                         const std::string& flag, Front front) {
  std::unique_ptr<Listener> listener(new Listener(limits, front));
  RETURN_IF_ERROR(listener->Listen(address, flag));
  return listener;
}

absl::Status Listener::Listen(const std::string& address, const std::string& flag) {
  ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(flag, address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host_port.host.c_str(), "0", &hints, &found);
  if (error != 0) return NotUsable(flag, address, gai_strerror(error));
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
      return NotUsable(flag, address, std::strerror(errno));
    }
    port_ = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  }
  return listeners_.empty() ? NotUsable(flag, address, "there is no such kind of address here") : absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  if (stop_ >= 0) close(stop_);
}

void Listener::Start(std::function<void(const Accepted&)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  EndHandshakes(listeners_);
  const uint64_t one = 1;
  if (thread_.joinable() && write(stop_, &one, sizeof one) == sizeof one) thread_.join();
  for (const int listener : std::exchange(listeners_, {})) close(listener);
}

void Listener::Run() {
  pthread_setname_np(pthread_self(), "accept");
  std::vector<pollfd> events;
  for (const int listener : listeners_) events.push_back({listener, POLLIN, 0});
  events.push_back({stop_, POLLIN, 0});
  std::chrono::milliseconds pause{0};
  while (true) {
    // A pause looks at the last entry only.
    const bool paused = pause.count() > 0;
    pollfd* const first = paused ? &events.back() : events.data();
    const nfds_t count = paused ? 1 : events.size();
    poll(first, count, paused ? static_cast<int>(pause.count()) : -1);
    const bool stops = events.back().revents != 0, waited = !std::exchange(out_of_, "").empty();
    pause = {};
    for (const pollfd& event : events) {
      if (event.fd != stop_ && (event.revents != 0 || stops)) pause = std::max(pause, Accept(event.fd));
    }
    if (stops) return;
    if (!out_of_.empty() && !waited) Log(LogLevel::kWarning, "connections wait", {{"reason", out_of_}});
  }
}

std::chrono::milliseconds Listener::Accept(int listener) {
  while (true) {
    if (hold_.load()) {
      out_of_ = "calls hold more memory than they may";
      return kPause;
    }
    const bool rationed = ration_.load() < LostCalls::kAnyNumber;
    if (ration_.load() <= 0) {
      out_of_ = "calls are read too late";
      return kPause;
    }
    {
      const absl::MutexLock lock(&mutex_);
      if (ended_.size() >= kMostEnding && Ending() >= kMostEnding) return kClosing;
    }
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Accepted accepted = {.listener = listener};
    accepted.descriptor = accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted.descriptor < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      const int error = errno;
      if (error == EMFILE || error == ENFILE) {
        const absl::MutexLock lock(&mutex_);
        ForgetClosedAtTimes();
        if (Ending() > 0 || MakeRoom()) return kClosing;
      }
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        out_of_ = std::strerror(error);
        return kPause;
      }
      continue;  // that connection is gone already
    }
    const bool unread = rationed && UnreadOf(accepted.descriptor) >= kMuchUnread;
    if (unread || HasLeft(accepted.descriptor)) {
      End(accepted.descriptor);
      close(accepted.descriptor);
      continue;
    }
    if (rationed) ration_.fetch_sub(1);
    accepted.is_ipv6 = address.ss_family == AF_INET6;
    if (accepted.is_ipv6) {
      std::memcpy(accepted.address.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
    } else {
      accepted.address = MappedIpv4(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
    }
    // sin_port and sin6_port lie at the same place.
    if (Add(accepted, ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port))) {
      take_(accepted);
    } else {
      close(accepted.descriptor);
    }
  }
}

bool Listener::Add(Accepted& accepted, uint16_t port) {
  using Room = ConnectionTable::Room;
  const Network peer = NetworkOf(accepted.address);
  const absl::MutexLock lock(&mutex_);
  if (table_.RoomFor(peer) != Room::kFree) ForgetClosedAtTimes();
  const Room room = table_.RoomFor(peer);
  if (room == Room::kNoneForPeer || (room == Room::kNone && !MakeRoom())) return false;
  const Endpoint from(accepted.address, port);
  accepted.connection = table_.Add(from);
  connections_[accepted.connection] = {accepted.descriptor, SocketOf(accepted.descriptor), from};
  return true;
}

bool Listener::MakeRoom() {
  for (int looked = 0; looked < kMostAnswering; ++looked) {
    const std::optional<uint64_t> next = table_.NextToGiveWay();
    if (!next) return false;
    const auto connection = connections_.find(*next);
    const int descriptor = connection->second.descriptor;
    if (SocketOf(descriptor) != connection->second.socket) {
      Forget(connection);
      return true;
    }
    if (UnconfirmedOf(descriptor) > 0) {  // the end of an answer is on its way
      table_.Renew(*next);
      continue;
    }
    table_.Remove(*next);
    ended_.push_back(*next);
    End(descriptor);
    return true;
  }
  return false;
}

size_t Listener::Ending() {
  std::erase_if(ended_, [this](uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto connection = connections_.find(number);
    if (connection == connections_.end()) return true;
    if (SocketOf(connection->second.descriptor) == connection->second.socket) return false;
    Forget(connection);
    return true;
  });
  return ended_.size();
}

void Listener::Forget(std::map<uint64_t, Connection>::iterator connection) {
  const auto& [number, forgotten] = *connection;
  table_.Remove(number);
  waits_.erase(forgotten.from);
  connections_.erase(connection);
}

void Listener::ForgetClosed() {
  if (front_ == Front::kHttp) return;
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    if (SocketOf(connection->second.descriptor) != connection->second.socket) Forget(connection);
  }
}

void Listener::ForgetClosedAtTimes() {
  const Time begun = Clock::now();
  if (begun < next_search_) return;
  ForgetClosed();
  const Time end = Clock::now();
  next_search_ = end + kPartOfSearches * (end - begun);
}

void Listener::Closing(uint64_t connection) {
  const absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(connection);
  if (found != connections_.end()) Forget(found);
}

uint64_t Listener::Begin(const std::string& peer) { return table_.Begin(ParsePeer(peer)); }

uint64_t Listener::ToBeRead(uint64_t number, const Connection& connection) const {
  return front_ == Front::kHttp && table_.busy(number) ? 0 : UnreadOf(connection.descriptor);
}

void Listener::MarkTraffic() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  for (auto& [_, connection] : connections_) connection.marked = ReceivedOf(connection.descriptor);
}

bool Listener::CloseBusiest() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  int busiest = -1;
  uint64_t most = 0;
  for (auto& [_, connection] : connections_) {
    const uint64_t received = ReceivedOf(connection.descriptor);
    const uint64_t fresh = received - std::min(received, connection.marked);
    connection.marked = received;
    if (fresh <= most) continue;
    most = fresh;
    busiest = connection.descriptor;
  }
  if (busiest < 0) return false;
  End(busiest);
  return true;
}

int Listener::CloseLate(double part, Clock::duration limit) {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  std::vector<std::pair<uint64_t, uint64_t>> late;  // bytes, number
  uint64_t unread = 0, dropped = 0;
  for (const auto& [number, connection] : connections_) {
    const uint64_t bytes = std::min(ToBeRead(number, connection), kMostCounted);
    unread += bytes;
    if (bytes >= kLittleUnread && connection.age >= limit) late.emplace_back(bytes, number);
  }
  std::sort(late.rbegin(), late.rend());
  int closed = 0;
  for (const auto& [bytes, number] : late) {
    if (static_cast<double>(dropped) >= part * static_cast<double>(unread)) break;
    dropped += bytes;
    Connection& connection = connections_.at(number);
    End(connection.descriptor);
    connection.unread = {};
    connection.age = {};
    ++closed;
  }
  return closed;
}

uint64_t Listener::Unconfirmed(const std::string& peer) {
  const Endpoint from = ParsePeer(peer);
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  const auto found = connections_.find(table_.Find(from));
  return found == connections_.end() ? 0 : UnconfirmedOf(found->second.descriptor);
}

uint64_t Listener::Unconfirmed() {
  const absl::MutexLock lock(&mutex_);
  ForgetClosed();
  uint64_t bytes = 0;
  for (const auto& [_, connection] : connections_) bytes += UnconfirmedOf(connection.descriptor);
  return bytes;
}

void Listener::MeasureWaits(Time now) {
  const absl::MutexLock lock(&mutex_);
  auto next = connections_.upper_bound(measured_);
  for (size_t looked = std::min<size_t>(connections_.size(), kMeasuredAtOnce); looked > 0; --looked) {
    if (next == connections_.end()) next = connections_.begin();
    auto& [number, connection] = *next++;
    const int descriptor = connection.descriptor;
    measured_ = number;
    const uint64_t unread = ToBeRead(number, connection);
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
