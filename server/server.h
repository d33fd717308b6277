// The whole server: builds its parts in order, loads the models, drains. main.cc and the tests own one.
#ifndef EDGEWISE_SERVER_SERVER_H_
#define EDGEWISE_SERVER_SERVER_H_

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/options.h"

namespace edgewise::server {

class Server {
 public:
  // Opens the ports and returns. Models load afterwards; health is NOT_SERVING until each was tried. INVALID_ARGUMENT:
  // options; NOT_FOUND: a file or the repository; ALREADY_EXISTS: a port is taken; UNAVAILABLE, UNIMPLEMENTED: the
  // device.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Drains with a timeout of zero unless Drain() was called.
  ~Server();

  int port() const;          // of gRPC
  int metrics_port() const;  // 0: none
  int http_port() const;     // of the HTTP front; 0: none

  // Scans the repository again; loads happen afterwards. NOT_FOUND: it cannot be read. FAILED_PRECONDITION:
  // RepositoryMode::kNone.
  absl::Status Reload();
  // Waits until every version was tried. False: not within `timeout`.
  bool WaitUntilLoaded(std::chrono::milliseconds timeout);

  // Tells everybody who asks that the server will stop: health says NOT_SERVING, /healthz 503, and each answer over
  // HTTP that its connection closes. Calls are taken as before, until Drain().
  void AnnounceDrain();
  // Closes the ports of calls, once that of HTTP has taken the connections that wait for it. Connections that are there
  // are served as before, until Drain(): whoever was told nothing finds out when it connects, and loses no call.
  void StopListening();
  // Makes health NOT_SERVING and new requests UNAVAILABLE, waits at most `timeout` for requests in flight, and cancels
  // the rest. Returns when everything has stopped. Only the first call has an effect.
  void Drain(std::chrono::milliseconds timeout);
  // Whether Drain() has ended all calls and only waits for the device, or for a model that loads. Any thread.
  bool calls_ended() const;

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SERVER_H_
