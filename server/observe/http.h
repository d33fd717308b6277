// The HTTP port: GET /metrics and GET /healthz, nothing else. A single thread of its own, so a slow scraper never holds
// up a request.
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

// Requests are at most 8 KiB with an empty body; a connection answers one request, may take `timeout` to send it and as
// long to take the answer, and at most 64 are open at once.
class HttpServer {
 public:
  // Listens on "host:port" (port 0: any). INVALID_ARGUMENT: not an address; ALREADY_EXISTS: the port is taken. The
  // handlers are called on the server's thread.
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
