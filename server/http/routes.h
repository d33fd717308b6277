// The table of what the HTTP ports serve.
#ifndef EDGEWISE_SERVER_HTTP_ROUTES_H_
#define EDGEWISE_SERVER_HTTP_ROUTES_H_

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/exchange.h"

namespace edgewise::server {

// A route takes GET (and HEAD) without a body, or POST with one of JSON. (A page in a browser can post a body without
// that type unasked, but never without its Origin.)
struct Route {
  const char* method;           // "GET" or "POST"
  const char* path;             // "{}" stands for one segment: "/v1/models/{}"; also its name in metrics and logs
  ErrorBody error;              // of its API
  bool open = false;            // no token is needed
  bool quiet = false;           // a probe, a scrape or a file of the page: see Call::quiet
  bool apart = false;           // it takes long: on a thread for such
  bool binary = false;          // a body may be bytes, too: application/octet-stream, or without a type
  std::optional<Rpc> rpc = {};  // kPredict or kGenerate: a body that is not read is counted as one of these
  // For the OpenAPI document (openapi.h): the message that a body of JSON becomes, and the shape of the answer. Null
  // and empty: any.
  const google::protobuf::Descriptor* body = nullptr;
  std::string answer = "";
  // On a thread of the port, or one for long messages. It must not block.
  std::function<void(const std::shared_ptr<Exchange>&)> serve;
};

// Filled before the port opens; then any thread.
class Routes {
 public:
  void Add(Route route);
  // Errors of paths that no route has: those below `prefix` get the shape of that API. The longest prefix counts.
  void AddApi(std::string prefix, ErrorBody error) { apis_.emplace_back(std::move(prefix), error); }

  // Paths that begin with these segments, and that no route has, are refused with 400 and this reason.
  void AddRefusal(std::string path, std::string why) { refusals_.emplace_back(std::move(path), std::move(why)); }

  // More to say of a path that no route has; or of any that ends with ":verb", which none has with another method.
  void AddHint(std::string path, std::string hint) { hints_[std::move(path)] = std::move(hint); }

  struct Match {
    const Route* route = nullptr;  // null: `refusal` says why
    std::vector<std::string> arguments;
    HttpRefusal refusal;
    std::string allow;  // with 405
    ErrorBody error = PlainError;
  };
  Match Find(const std::string& method, const std::string& path) const;

  const std::vector<Route>& all() const { return routes_; }

 private:
  std::map<std::string, std::string>::const_iterator FindHint(const std::string& path) const;

  std::vector<Route> routes_;
  std::vector<std::pair<std::string, ErrorBody>> apis_;
  std::vector<std::pair<std::string, std::string>> refusals_;
  std::map<std::string, std::string> hints_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_ROUTES_H_
