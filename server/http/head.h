// The head of a request: which of them are served at all, whoever asks and whatever for.
#ifndef EDGEWISE_SERVER_HTTP_HEAD_H_
#define EDGEWISE_SERVER_HTTP_HEAD_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace edgewise::server {

inline constexpr size_t kMaxHeadBytes = 8192;
inline constexpr size_t kMaxFields = 100;

// Looks at the bytes of a head, its empty line included, before a parser reads them: parsers take what another party on
// the way may read otherwise. 400: a line that is folded or does not end with CR LF, a control character, two lengths
// or a length with chunks, another coding of the transfer, a field twice that has one meaning (Host, Authorization,
// Content-Type, ...). 415: a compressed body. 431: too many fields.
HttpRefusal CheckHead(std::string_view head);

// Whether a line ends with a line feed alone, which CheckHead would refuse.
bool HasBareLineFeed(std::string_view head);

// The target of a request (RFC 9112, 3.2).
struct HttpTarget {
  std::string_view path;  // "/a/b" without the query; or "*", the server as a whole, which OPTIONS may be for
  std::string_view
      host;  // of the absolute form, "http://host:8000/a/b", where it stands for the field Host; else empty
};
// False: the target has none of the forms. The parts are of `target`.
bool ParseTarget(std::string_view method, std::string_view target, HttpTarget* parsed);

// Whether a page that a browser shows under the name `host` (with or without a port) is this server's own: an address,
// localhost, or one of `names` ("*.example.com" and "*" match any label there).
bool IsServedHost(std::string_view host, const std::vector<std::string>& names);

// Whether an Origin may call a server that it knows as `host`: its own pages, and those of `origins`.
bool IsAllowedOrigin(std::string_view origin, std::string_view host, const std::vector<std::string>& origins);
// Its own pages.
bool IsSameOrigin(std::string_view origin, std::string_view host);

// A part of a path without its %XX; false: it has a wrong one, or a NUL.
bool DecodeSegment(std::string_view segment, std::string* decoded);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_HEAD_H_
