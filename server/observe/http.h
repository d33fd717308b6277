// The HTTP port: GET and HEAD of /metrics and /healthz only. It has one thread of its own, so a slow scraper never
// delays a request.
#ifndef EDGEWISE_SERVER_OBSERVE_HTTP_H_
#define EDGEWISE_SERVER_OBSERVE_HTTP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace edgewise::server {

struct HttpHandlers {
  std::function<std::string()> metrics;            // exposition text
  std::function<bool(std::string* json)> healthy;  // fills the body; true: 200, false: 503
};

// A request has at most 8 KiB and no body. A connection answers one request; the client has `timeout` to send it and
// again to read the answer. At most 64 connections are open at once. Metrics are compressed where the client takes
// gzip. HEAD makes no page of metrics, so it takes none away from those who read them (Metrics::Render).
class HttpServer {
 public:
  // Listens on "host:port" (port 0: any free one). INVALID_ARGUMENT: not an address; ALREADY_EXISTS: the port is taken.
  // The handlers are called on the thread of this server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers,
                                                           std::chrono::milliseconds timeout = std::chrono::seconds(2));
  // Closes all connections.
  ~HttpServer();

  int port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_HTTP_H_
