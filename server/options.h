// Everything that can be chosen about a server. main.cc fills this from flags; nothing else reads a flag or the
// environment.
#ifndef EDGEWISE_SERVER_OPTIONS_H_
#define EDGEWISE_SERVER_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/backend.h"

namespace edgewise::server {

// What one request may ask for.
struct RequestLimits {
  uint32_t max_inputs = 1024;
  uint32_t max_samples = 256;
  bool allow_graphs = false;
  uint64_t max_graph_edges = uint64_t{4} << 20;  // given, or returned, over layers and heads
  uint64_t max_response_bytes = uint64_t{64} << 20;
  uint64_t max_result_bytes = uint64_t{256} << 20;  // held for the samples of one request while it is computed
  uint32_t max_new_tokens = 4096;
  uint64_t max_cache_bytes = uint64_t{2} << 30;  // keys and values of one generation, and of all that run together
};

// What may wait: each of Predict requests and of generations. An empty queue takes any request.
struct QueueLimits {
  size_t max_requests = 256;
  uint64_t max_tokens = uint64_t{8} << 20;  // sum of Task::cost
};

struct SecurityOptions {
  std::string tls_certificate;  // files, PEM; empty: plain text
  std::string tls_key;
  std::string tls_client_ca;    // clients must show a certificate that this signs
  std::string auth_token_file;  // one bearer token a line; empty: no token is asked for
  bool insecure_bind = false;   // allow an address other than loopback without TLS
};

struct ServerOptions {
  std::string model_repository;
  std::string listen = "127.0.0.1:8001";
  std::string metrics_listen = "127.0.0.1:8002";  // empty: no HTTP port
  BackendOptions backend;
  RequestLimits limits;
  QueueLimits queue;
  size_t max_generations = 16;  // that run side by side
  SecurityOptions security;
  int max_message_bytes = 64 << 20;
  uint32_t stream_in_flight = 32;  // requests computed or queued at once for one stream; beyond it reads wait
  uint32_t unsent_tokens = 32;     // of one generation; at so many it waits until the client has read some
  std::chrono::milliseconds unread_timeout{30000};  // a generation that waits so long for its client ends
  bool reflection = false;
  std::chrono::milliseconds drain_timeout{25000};
  // Called once, on a thread of the server, when the device is lost: nothing but a new process helps. Health says so
  // already.
  std::function<void()> on_device_lost;
  // Where deadlines, drains and times come from. Tests move their own.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OPTIONS_H_
