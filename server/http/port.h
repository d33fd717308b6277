// A port of HTTP/1.1: accepts connections and serves the routes of a table on threads of its own.
#ifndef EDGEWISE_SERVER_HTTP_PORT_H_
#define EDGEWISE_SERVER_HTTP_PORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/guard/certificates.h"
#include "server/guard/listener.h"
#include "server/http/routes.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

struct HttpPortOptions {
  std::string flag;     // names the address in errors
  std::string address;  // an IP address or localhost, with a port; port 0: any free one
  ConnectionLimits connections = {.in_all = 64};
  int threads = 1;
  // A connection without a request; from the first byte of a head to its last; until a client takes what is sent next.
  std::chrono::milliseconds idle_timeout{60000}, head_timeout{10000}, write_timeout{30000};
  // Whether requests are checked for names (ServerOptions::http_hosts) and origins.
  bool for_browsers = false;
  std::vector<std::string> hosts, origins;
};

// Listener (guard/listener.h) bounds the connections. All methods: any thread.
class HttpPort {
 public:
  // Listens; connections wait until Start. `routes` must outlive the port. Null `parts`: routes take no body and no
  // token, nothing is counted, and all is done on the threads of the port; else they must outlive it. Null
  // `certificates`: plain text. INVALID_ARGUMENT: not an address; ALREADY_EXISTS: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Open(HttpPortOptions options, const Routes& routes,
                                                        CallParts* parts = nullptr,
                                                        std::shared_ptr<Certificates> certificates = nullptr);
  // Closes all connections. No exchange may be left that will be answered.
  ~HttpPort();

  // Accepts from now on. Call once.
  void Start();
  int port() const;
  size_t connections() const;  // open now
  // For a watchdog, which must stop before the port ends.
  Listener& listener();
  const CallCounts& counts() const;  // come and late
  // From now on every answer says that its connection closes, which it does.
  void AnnounceDrain();
  // After Start. Takes the connections that wait for the port, and closes it. Connections are served as before.
  void StopListening();
  // After AnnounceDrain. From now on connections close once their exchange has ended, and at once if they have none.
  void Drain();
  // Exchanges from their head until their answer is written, or their client is gone.
  int64_t open_exchanges() const;

 private:
  class State;
  explicit HttpPort(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_PORT_H_
