#include "server/base/address.h"

#include <arpa/inet.h>

#include <charconv>

#include "absl/strings/str_cat.h"

namespace edgewise::server {

absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address) {
  HostPort parsed;
  const size_t colon = address.rfind(':');
  bool valid = colon != std::string::npos && colon + 1 < address.size();
  if (valid) {
    parsed.host = address.substr(0, colon);
    const char* end_of_address = address.data() + address.size();
    const auto [end, error] = std::from_chars(address.data() + colon + 1, end_of_address, parsed.port);
    valid = error == std::errc() && end == end_of_address;
    if (parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']') {
      parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
      in6_addr ipv6;
      valid = valid && inet_pton(AF_INET6, parsed.host.c_str(), &ipv6) == 1;
    } else {
      valid = valid && !parsed.host.empty() && parsed.host.find_first_of(":/[]") == std::string::npos;
    }
  }
  if (valid) return parsed;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", address, ": an address is HOST:PORT or [IPv6]:PORT, the port 0 to 65535"));
}

bool IsLoopback(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort("", address);
  if (!parsed.ok()) return false;
  if (parsed->host == "localhost") return true;
  in_addr ipv4;
  if (inet_pton(AF_INET, parsed->host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  in6_addr ipv6;
  return inet_pton(AF_INET6, parsed->host.c_str(), &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6);
}

}  // namespace edgewise::server
