#include "client/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace edgewise::internal {
namespace {

constexpr char kOneServer[] = "HOST:PORT, such as localhost:8001";

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = kDefaultPort;
};

absl::Status Wrong(absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("address has \"", found, "\"; expected ", expected));
}

bool IsNumber(int family, const std::string& host) {
  in6_addr bytes;
  return inet_pton(family, host.c_str(), &bytes) == 1;
}

std::string Join(const HostPort& one) {
  const bool brackets = one.host.find(':') != std::string::npos;
  return absl::StrCat(brackets ? "[" : "", one.host, brackets ? "]:" : ":", one.port);
}

// HOST, HOST:PORT, [IPV6], [IPV6]:PORT or IPV6.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  HostPort parsed;
  if (IsNumber(AF_INET6, std::string(text))) return HostPort{std::string(text)};
  absl::string_view port;
  bool has_port = false;
  if (absl::StartsWith(text, "[")) {
    const size_t end = text.find(']');
    parsed.host = std::string(text.substr(1, end == absl::string_view::npos ? end : end - 1));
    if (end == absl::string_view::npos || !IsNumber(AF_INET6, parsed.host.substr(0, parsed.host.find('%')))) {
      return Wrong(text, "an IPv6 address in the brackets, such as [::1]:8001");
    }
    port = text.substr(end + 1);
    has_port = !port.empty();
    if (has_port && !absl::ConsumePrefix(&port, ":")) return Wrong(text, kOneServer);
  } else {
    const size_t colon = text.find(':');
    parsed.host = std::string(text.substr(0, colon));
    has_port = colon != absl::string_view::npos;
    if (has_port) port = text.substr(colon + 1);
  }
  const bool printable = std::all_of(parsed.host.begin(), parsed.host.end(), absl::ascii_isgraph);
  if (parsed.host.empty() || !printable || parsed.host.find_first_of("/,[]@") != std::string::npos) {
    return Wrong(text, kOneServer);
  }
  uint32_t number = kDefaultPort;
  if (has_port && (!absl::SimpleAtoi(port, &number) || !absl::ascii_isdigit(port[0]) || number < 1 || number > 65535)) {
    return Wrong(text, "HOST:PORT with a port from 1 to 65535, such as localhost:8001");
  }
  parsed.port = static_cast<uint16_t>(number);
  return parsed;
}

bool IsLocalHost(const std::string& host) {
  in_addr ipv4;
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  in6_addr ipv6;
  if (inet_pton(AF_INET6, host.c_str(), &ipv6) == 1) return IN6_IS_ADDR_LOOPBACK(&ipv6);
  return host == "localhost";
}

// The IPv4 addresses of a host; those of IPv6 where it has no other. One family, so that a host with both gets no
// double share.
absl::StatusOr<std::vector<HostPort>> LookUp(const HostPort& server) {
  if (IsNumber(AF_INET, server.host) || IsNumber(AF_INET6, server.host)) return std::vector<HostPort>{server};
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(server.host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("address: the host \"", server.host, "\" is not known: ", gai_strerror(error)));
  }
  std::vector<HostPort> ipv4, ipv6;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char number[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, number, sizeof(number), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (one->ai_family == AF_INET) ipv4.push_back({number, server.port});
    if (one->ai_family == AF_INET6) ipv6.push_back({number, server.port});
  }
  freeaddrinfo(found);
  return ipv4.empty() ? ipv6 : ipv4;
}

// The target of servers whose hosts are numbers. A target has one family, and IPv6 can write the addresses of IPv4.
std::string NumberTarget(const std::vector<HostPort>& servers) {
  const bool ipv4 = std::all_of(servers.begin(), servers.end(),
                                [](const HostPort& server) { return IsNumber(AF_INET, server.host); });
  std::vector<std::string> written;
  for (HostPort server : servers) {
    if (!ipv4 && IsNumber(AF_INET, server.host)) server.host = "::ffff:" + server.host;
    if (std::string one = Join(server); std::find(written.begin(), written.end(), one) == written.end()) {
      written.push_back(std::move(one));
    }
  }
  return absl::StrCat(ipv4 ? "ipv4:" : "ipv6:", absl::StrJoin(written, ","));
}

absl::StatusOr<Address> ParseList(absl::string_view list, std::optional<int> family) {
  std::vector<HostPort> servers;
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    part = absl::StripAsciiWhitespace(part);
    for (const char* scheme : {"unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:"}) {
      if (absl::StartsWith(part, scheme)) return Wrong(part, absl::StrCat(scheme, " to stand alone"));
    }
    const absl::StatusOr<HostPort> server = ParseHostPort(part);
    if (!server.ok()) return server.status();
    if (family && !IsNumber(*family, server->host)) {
      return Wrong(
          part, *family == AF_INET ? "an IPv4 address, such as 127.0.0.1:8001" : "an IPv6 address, such as [::1]:8001");
    }
    servers.push_back(*server);
  }
  Address address;
  address.local =
      std::all_of(servers.begin(), servers.end(), [](const HostPort& server) { return IsLocalHost(server.host); });
  for (const HostPort& server : servers) address.servers.push_back({Join(server), server.host});
  address.balanced = family.has_value() || servers.size() > 1;
  if (!address.balanced) {
    address.target = address.servers[0].target;
    return address;
  }
  std::vector<HostPort> numbers;
  for (const HostPort& server : servers) {
    const absl::StatusOr<std::vector<HostPort>> found = LookUp(server);
    if (!found.ok()) return found.status();
    numbers.insert(numbers.end(), found->begin(), found->end());
  }
  address.target = NumberTarget(numbers);
  address.authority = address.servers[0].target;
  return address;
}

// dns:HOST, dns:///HOST or dns://RESOLVER/HOST.
absl::StatusOr<Address> ParseName(const std::string& text) {
  absl::string_view rest = text;
  rest.remove_prefix(4);
  absl::string_view resolver;
  if (absl::ConsumePrefix(&rest, "//")) {
    const size_t slash = rest.find('/');
    if (slash == absl::string_view::npos) return Wrong(text, "dns:///HOST:PORT");
    resolver = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
  }
  const absl::StatusOr<HostPort> server = ParseHostPort(rest);
  if (!server.ok()) return Wrong(text, "dns:///HOST:PORT, with one name");
  Address address;
  address.target = absl::StrCat("dns://", resolver, "/", Join(*server));
  address.balanced = true;
  address.local = IsLocalHost(server->host);
  address.servers.push_back({address.target, server->host});
  return address;
}

}  // namespace

absl::StatusOr<Address> ParseAddress(const std::string& address) {
  if (address.empty()) return absl::InvalidArgumentError("address is empty; expected HOST:PORT");
  if (absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:")) {
    return Address{.target = address, .local = true, .servers = {{address, ""}}};
  }
  if (absl::StartsWith(address, "xds:")) return Address{.target = address, .servers = {{address, ""}}};
  if (absl::StartsWith(address, "dns:")) return ParseName(address);
  if (absl::StartsWith(address, "ipv4:")) return ParseList(absl::string_view(address).substr(5), AF_INET);
  if (absl::StartsWith(address, "ipv6:")) return ParseList(absl::string_view(address).substr(5), AF_INET6);
  return ParseList(address, std::nullopt);
}

absl::StatusOr<std::vector<ServerAddress>> FindServers(const Address& address) {
  if (!absl::StartsWith(address.target, "dns:")) return address.servers;
  const absl::StatusOr<HostPort> name = ParseHostPort(address.target.substr(address.target.rfind('/') + 1));
  if (!name.ok()) return name.status();
  const absl::StatusOr<std::vector<HostPort>> found = LookUp(*name);
  if (!found.ok()) return found.status();
  std::vector<ServerAddress> servers;
  for (const HostPort& one : *found) servers.push_back({Join(one), name->host});
  return servers;
}

}  // namespace edgewise::internal
