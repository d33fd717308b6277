// HOST:PORT, as --listen and --metrics_listen take it.
#ifndef EDGEWISE_SERVER_BASE_ADDRESS_H_
#define EDGEWISE_SERVER_BASE_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace edgewise::server {

struct HostPort {
  std::string host;  // a name or an IP address, without brackets
  uint16_t port = 0;
};

// HOST:PORT or [IPv6]:PORT, the port 0 to 65535. INVALID_ARGUMENT, with the flag's name, for anything else.
absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address);

// Whether HOST is reachable from this machine only: an IPv4 address in 127/8, ::1, or localhost.
bool IsLoopback(const std::string& address);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_ADDRESS_H_
