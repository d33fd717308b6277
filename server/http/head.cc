#include "server/http/head.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace edgewise::server {
namespace {

// Fields with one meaning: of two, another party on the way may take the other one.
constexpr const char* kOnce[] = {
    "Host", "Authorization", "Content-Type", "Inference-Header-Content-Length", "X-Request-Id", "X-Request-Timeout-Ms"};

HttpRefusal Bad(const std::string& why) { return {400, absl::InvalidArgumentError(why)}; }

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return absl::ascii_tolower(static_cast<unsigned char>(x)) ==
                  absl::ascii_tolower(static_cast<unsigned char>(y));
         });
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsLength(std::string_view value) {
  return !value.empty() && value.size() <= 18 &&
         std::all_of(value.begin(), value.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// The name in HOST, HOST:PORT, [IPv6] or [IPv6]:PORT; empty: it is none of these.
std::string_view NameOf(std::string_view host) {
  if (!host.empty() && host.front() == '[') {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return {};
    const std::string_view rest = host.substr(end + 1);
    if (!rest.empty() && (rest.front() != ':' || !IsLength(rest.substr(1)))) return {};
    return host.substr(0, end + 1);
  }
  const size_t colon = host.find(':');
  if (colon == std::string_view::npos) return host;
  return IsLength(host.substr(colon + 1)) ? host.substr(0, colon) : std::string_view();
}

bool IsAddress(std::string_view name) {
  const bool brackets = name.size() > 2 && name.front() == '[';
  const std::string text(brackets ? name.substr(1, name.size() - 2) : name);
  in6_addr ipv6;
  in_addr ipv4;
  return brackets ? inet_pton(AF_INET6, text.c_str(), &ipv6) == 1 : inet_pton(AF_INET, text.c_str(), &ipv4) == 1;
}

}  // namespace

HttpRefusal CheckHead(std::string_view head) {
  size_t fields = 0, lengths = 0, codings = 0;
  bool seen[std::size(kOnce)] = {};
  bool first = true;
  const std::string_view version = head.substr(0, head.find("\r\n"));
  for (size_t begin = 0; begin < head.size();) {
    const size_t end = head.find("\r\n", begin);
    if (end == std::string_view::npos) return Bad("the head does not end with an empty line");
    const std::string_view line = head.substr(begin, end - begin);
    begin = end + 2;
    for (const char c : line) {
      const auto byte = static_cast<uint8_t>(c);
      if ((byte < 0x20 && byte != '\t') || byte == 0x7F) return Bad("the head has a control character");
    }
    if (std::exchange(first, false) || line.empty()) continue;
    if (line.front() == ' ' || line.front() == '\t') return Bad("the head has a folded line");
    if (++fields > kMaxFields) {
      return {431, absl::InvalidArgumentError(absl::StrCat("the head has more than ", kMaxFields, " fields"))};
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return Bad("the head has a line that is no field");
    const std::string_view name = line.substr(0, colon), value = Trim(line.substr(colon + 1));
    for (size_t i = 0; i < std::size(kOnce); ++i) {
      if (Same(name, kOnce[i]) && std::exchange(seen[i], true)) {
        return Bad(absl::StrCat(kOnce[i], " is given more than once"));
      }
    }
    if (Same(name, "content-length")) {
      ++lengths;
      if (!IsLength(value)) return Bad("Content-Length is no number of bytes");
    } else if (Same(name, "transfer-encoding")) {
      ++codings;
      if (!Same(value, "chunked")) return Bad("Transfer-Encoding is not chunked, the only one that is read");
    } else if (Same(name, "content-encoding") && !Same(value, "identity")) {
      return {415, absl::InvalidArgumentError("Content-Encoding is set; compressed bodies are not taken")};
    }
  }
  if (lengths + codings > 1) return Bad("Content-Length and Transfer-Encoding are given more than once in all");
  if (codings > 0 && !version.ends_with("HTTP/1.1")) return Bad("Transfer-Encoding needs HTTP/1.1");
  return {};
}

bool HasBareLineFeed(std::string_view head) {
  for (size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at + 1)) {
    if (at == 0 || head[at - 1] != '\r') return true;
  }
  return false;
}

bool ParseTarget(std::string_view method, std::string_view target, HttpTarget* parsed) {
  *parsed = {.path = target.substr(0, target.find('?')), .host = ""};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!Same(target.substr(0, scheme.size()), scheme)) continue;
    const std::string_view rest = parsed->path.substr(scheme.size());
    parsed->host = rest.substr(0, rest.find('/'));
    parsed->path = rest.substr(parsed->host.size());
    if (parsed->path.empty()) parsed->path = method == "OPTIONS" ? "*" : "/";
    return !parsed->host.empty();
  }
  return parsed->path.substr(0, 1) == "/" || (target == "*" && method == "OPTIONS");
}

bool IsServedHost(std::string_view host, const std::vector<std::string>& names) {
  const std::string_view name = NameOf(host);
  if (name.empty()) return false;
  if (IsAddress(name) || Same(name, "localhost")) return true;
  return std::any_of(names.begin(), names.end(), [&](const std::string& known) {
    if (known == "*") return true;
    if (known.size() < 3 || known.compare(0, 2, "*.") != 0) return Same(name, known);
    const size_t tail = known.size() - 1;  // ".example.com"
    return name.size() > tail && Same(name.substr(name.size() - tail), std::string_view(known).substr(1));
  });
}

bool IsSameOrigin(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  const bool http = origin.substr(0, scheme) == "http", https = origin.substr(0, scheme) == "https";
  return (http || https) && !host.empty() && Same(origin.substr(scheme + 3), host);
}

bool IsAllowedOrigin(std::string_view origin, std::string_view host, const std::vector<std::string>& origins) {
  return IsSameOrigin(origin, host) ||
         std::any_of(origins.begin(), origins.end(), [&](const std::string& known) { return Same(origin, known); });
}

bool DecodeSegment(std::string_view segment, std::string* decoded) {
  decoded->clear();
  for (size_t at = 0; at < segment.size(); ++at) {
    if (segment[at] != '%') {
      decoded->push_back(segment[at]);
      continue;
    }
    if (at + 2 >= segment.size()) return false;
    const char high = segment[at + 1], low = segment[at + 2];
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(high)) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(low))) {
      return false;
    }
    const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
    const int byte = digit(high) * 16 + digit(low);
    if (byte == 0) return false;
    decoded->push_back(static_cast<char>(byte));
    at += 2;
  }
  return true;
}

}  // namespace edgewise::server
