#include "server/http/routes.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "server/http/head.h"

namespace edgewise::server {
namespace {

// Cuts the first segment, behind its slash, off `path`.
std::string_view TakeSegment(std::string_view& path) {
  path.remove_prefix(1);
  const std::string_view segment = path.substr(0, path.find('/'));
  path.remove_prefix(segment.size());
  return segment;
}

// Cuts the segments that `pattern` has off `path`; false: it has others.
bool TakePattern(std::string_view pattern, std::string_view& path, std::vector<std::string>& arguments) {
  while (!pattern.empty() && !path.empty() && path.front() == '/') {
    const std::string_view expected = TakeSegment(pattern), found = TakeSegment(path);
    if (expected != "{}") {
      if (expected != found) return false;
      continue;
    }
    std::string argument;
    if (!DecodeSegment(found, &argument) || argument.empty()) return false;
    arguments.push_back(std::move(argument));
  }
  return pattern.empty();
}

}  // namespace

void Routes::Add(Route route) { routes_.push_back(std::move(route)); }

std::map<std::string, std::string>::const_iterator Routes::FindHint(const std::string& path) const {
  const auto hint = hints_.find(path);
  const size_t colon = path.rfind(':');
  return hint != hints_.end() || colon == std::string::npos ? hint : hints_.find(path.substr(colon));
}

Routes::Match Routes::Find(const std::string& method, const std::string& path) const {
  Match match;
  size_t longest = 0;
  for (const auto& [prefix, error] : apis_) {
    if (!absl::StartsWith(path, prefix) || prefix.size() <= longest) continue;
    longest = prefix.size();
    match.error = error;
  }
  for (const Route& route : routes_) {
    std::vector<std::string> arguments;
    std::string_view rest = path;
    if (!TakePattern(route.path, rest, arguments) || !rest.empty()) continue;
    match.error = route.error;
    if (route.method == method || (method == "HEAD" && std::string_view(route.method) == "GET")) {
      match.route = &route;
      match.arguments = std::move(arguments);
      return match;
    }
    absl::StrAppend(&match.allow, match.allow.empty() ? "" : ", ",
                    std::string_view(route.method) == "GET" ? "GET, HEAD" : route.method);
  }
  const auto refused = std::find_if(refusals_.begin(), refusals_.end(), [&](const auto& refusal) {
    std::string_view rest = path;
    std::vector<std::string> arguments;
    return TakePattern(refusal.first, rest, arguments);
  });
  if (match.allow.empty() && refused != refusals_.end()) {
    match.refusal = {400, absl::UnimplementedError(refused->second)};
  } else if (const auto hint = FindHint(path); match.allow.empty() || hint != hints_.end()) {
    match.allow.clear();
    match.refusal = {
        404, absl::UnimplementedError(absl::StrCat("there is no ", Quoted(path), hint == hints_.end() ? "" : "; ",
                                                   hint == hints_.end() ? "" : hint->second))};
  } else {
    match.refusal = {
        405, absl::UnimplementedError(absl::StrCat("the method is ", Quoted(method), "; allowed is ", match.allow))};
  }
  return match;
}

}  // namespace edgewise::server
