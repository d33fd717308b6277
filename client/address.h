// From ClientOptions::address to what gRPC connects to. Internal to the library.
#ifndef EDGEWISE_CLIENT_ADDRESS_H_
#define EDGEWISE_CLIENT_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace edgewise::internal {

inline constexpr uint16_t kDefaultPort = 8001;

// One server.
struct ServerAddress {
  std::string target;  // as gRPC takes it
  std::string host;    // the name that its certificate has; empty: unix:PATH, or a name of another resolver
};

struct Address {
  std::string target;     // of all servers, as gRPC takes it
  std::string authority;  // of calls to several servers; empty: what gRPC makes of the target
  bool balanced = false;  // several servers, or a name (dns:) that may stand for several: each gets its share of calls
  bool local = false;     // nothing leaves this machine
  // Each server by itself. One with the target of all where they are found by a name.
  std::vector<ServerAddress> servers;
};

// Takes HOST[:PORT], several with commas between, dns:[//RESOLVER/]HOST[:PORT], ipv4: and ipv6: with a list, unix:PATH
// and xds:NAME; the port is 8001 where none is given. gRPC takes numbers only for several servers, so the names of
// several hosts are looked up here, once: InvalidArgument for anything else, Unavailable for a host that is not known.
absl::StatusOr<Address> ParseAddress(const std::string& address);

// The servers that the name of a dns: address leads to at the time of the call; else address.servers.
absl::StatusOr<std::vector<ServerAddress>> FindServers(const Address& address);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_ADDRESS_H_
