// The connections of a port: whether there is room for one more, and which one gives way if there is none. Knows no
// socket.
#ifndef EDGEWISE_SERVER_GUARD_CONNECTION_TABLE_H_
#define EDGEWISE_SERVER_GUARD_CONNECTION_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::server {

struct ConnectionLimits {
  uint32_t in_all = 4096;
  uint32_t per_peer = 0;  // connections of one Network; 0: an eighth of all, at least 64
};

using Ipv6Address = std::array<uint8_t, 16>;        // an IPv4 address is mapped (RFC 4291, 2.5.5.2)
using Endpoint = std::pair<Ipv6Address, uint16_t>;  // and the port

// The addresses that one client is likely to hold: an IPv4 address, or the /64 prefix of an IPv6 address.
using Network = std::array<uint8_t, 16>;
Network NetworkOf(const Ipv6Address& address);

// A connection is idle while it has no whole request and no open call. Any thread.
class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits);

  enum class Room { kFree, kNone, kNoneForPeer };
  Room RoomFor(const Network& peer) const;
  // Adds an idle connection. Returns its number, which is not 0 and is given once.
  uint64_t Add(const Endpoint& client);
  // The number of the connection of this client, of several the last one. 0: there is none.
  uint64_t Find(const Endpoint& client) const;
  // Numbers that are not in the table are ignored.
  void Remove(uint64_t connection);
  // A request is whole, or a call is open; then it has ended. Calls of one connection are counted.
  void Begin(uint64_t connection);
  uint64_t Begin(const Endpoint& client);  // the same as Begin(Find(client)); returns the number
  void End(uint64_t connection);
  bool busy(uint64_t connection) const;
  // The connection that gives way: of the peer with most idle connections, the one that has been idle for longest.
  // Among peers with as many, the one whose connection has been idle for longest counts. Nullopt: none is idle.
  std::optional<uint64_t> NextToGiveWay() const;
  // An idle connection is in use after all: it counts as idle from now on.
  void Renew(uint64_t connection);
  size_t size() const;

 private:
  struct Peer {
    uint32_t connections = 0;
    std::map<uint64_t, uint64_t> idle;  // numbers of connections, by the turn at which each became idle
  };
  struct Connection {
    Endpoint client;
    std::map<Network, Peer>::iterator peer;
    uint32_t calls = 0;  // open
    uint64_t turn = 0;   // while it is idle
  };

  uint64_t NumberOf(const Endpoint& client) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void BeginLocked(uint64_t connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BecomeIdle(uint64_t number, Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by number
  absl::flat_hash_map<Endpoint, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
  std::map<Network, Peer> peers_ ABSL_GUARDED_BY(mutex_);  // each has a connection
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;              // number
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_CONNECTION_TABLE_H_
