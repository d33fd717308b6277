// The options of a server. main.cc sets them from flags; nothing else reads a flag or the environment. Most servers
// keep the defaults; each comment says when to change one.
#ifndef EDGEWISE_SERVER_BASE_OPTIONS_H_
#define EDGEWISE_SERVER_BASE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/civil_time.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/backend.h"

namespace edgewise::server {

// Limits of one request. Raise one when clients are refused for it and memory allows.
struct RequestLimits {
  uint32_t max_inputs = 1024;
  uint32_t max_samples = 256;
  bool allow_graphs = false;                         // enable it for clients that feed graphs back: each costs a check
  uint64_t max_graph_edges = uint64_t{4} << 20;      // given or returned, over layers and heads
  uint64_t max_response_bytes = uint64_t{64} << 20;  // main.cc sets it to max_message_bytes
  uint64_t max_result_bytes = uint64_t{256} << 20;   // held for the samples of one request while it is computed
  uint32_t max_new_tokens = 4096;                    // lower it where long generations keep others waiting
  // Keys and values of one generation, and of all that run together. Lower it where a GPU also has to hold other
  // models: the memory is taken when a model that generates is loaded.
  uint64_t max_cache_bytes = uint64_t{2} << 30;
};

// Limits of the waiting Predict requests, and the same of the waiting generations. An empty queue takes any request.
// Lower them where clients should hear of overload earlier: waiting requests use up their deadlines.
struct QueueLimits {
  uint32_t max_requests = 256;
  uint64_t max_tokens = uint64_t{8} << 20;  // sum of Work::cost
  uint32_t max_batch = 256;                 // Predict requests that start together; 1 shows what batches gain
  // The longest wait that a request without a deadline is accepted for, as predicted when it arrives.
  std::chrono::milliseconds max_delay{2000};
};

// Set these to serve others than this machine.
struct SecurityOptions {
  std::string tls_certificate;  // PEM files; empty: plain text
  std::string tls_key;
  std::string tls_client_ca;    // clients must show a certificate that this one signed
  std::string auth_token_file;  // one bearer token a line; empty: no token is required
  bool insecure_bind = false;   // allow an address other than loopback without TLS, as behind a proxy
};

// When the server looks into the repository after its start. With kNone or kExplicit nothing but Server::Reload does,
// which kNone refuses.
enum class RepositoryMode { kNone, kPoll, kExplicit };

// When the server is ready first: once a model serves, or once every model of the repository does. Before that it has
// tried to load each. Then it is ready while any model serves, so that a bad model that comes later stops no server.
enum class ReadyWhen { kAny, kAll };

struct ServerOptions {
  std::string model_repository;                             // empty: none
  std::vector<std::pair<std::string, std::string>> models;  // ModelSources::models
  RepositoryMode repository_mode = RepositoryMode::kExplicit;
  std::chrono::milliseconds repository_poll{10000};  // between two looks of kPoll
  ReadyWhen ready = ReadyWhen::kAny;
  std::string listen = "127.0.0.1:8001";
  std::string metrics_listen = "127.0.0.1:8002";  // empty: no port of metrics
  std::string http_listen;                        // of the HTTP front (docs/http.md); empty: none
  // Names that clients may reach the HTTP front by, beside addresses and localhost; "*.example.com": all below it; "*":
  // any. Others may be those of a page in somebody's browser.
  std::vector<std::string> http_hosts;
  std::vector<std::string> http_origins;  // of other pages that may call it, such as "https://app.example.com"
  BackendOptions backend;
  RequestLimits limits;
  QueueLimits queue;
  // The time that work on the device is cut into, where it can be: the time after which a more urgent request begins.
  std::chrono::milliseconds max_step{20};
  uint32_t max_generations = 16;  // that run side by side; more raise the throughput and slow each one down
  // Seconds of the device for the first forward passes of a model that is loaded. The predictions of the first requests
  // are fitted to them.
  std::chrono::milliseconds warm_up{1000};
  SecurityOptions security;
  // Largest message, in and out. 0: 4 MiB in, or as much as one input of the largest loaded model needs, but at most a
  // quarter of the memory for calls; 64 MiB out. Set it for many inputs in one request, or large graphs.
  uint64_t max_message_bytes = 0;
  // Memory for calls: messages, requests, results, answers that are not sent. 0: half of what the machine, or the
  // cgroup, has beside the weights. Set it where other programs share the machine.
  uint64_t max_memory = 0;
  uint32_t max_connections = 4096;  // of each port; lower where the process may not open as many files
  // Of one IPv4 address or IPv6 prefix of 64 bits. 0: an eighth of all, at least 64. Set it where all clients come
  // through one proxy.
  uint32_t max_connections_per_peer = 0;
  std::chrono::milliseconds message_timeout{30000};  // from the headers of a call to its whole message
  uint32_t stream_in_flight = 32;  // requests that one stream has queued or computed at once; beyond it reads wait
  uint64_t unsent_bytes = uint64_t{4} << 20;   // answers of one stream that wait to be sent; beyond it reads wait
  uint32_t unsent_tokens = 32;                 // of one generation, which then waits until its client has read some
  std::chrono::milliseconds park_after{1000};  // gives the place of a generation whose client reads nothing away;
  std::chrono::milliseconds unread_timeout{30000};  // and cancels it
  bool reflection = false;                          // enable it for tools such as grpcurl
  // From the signal to the drain: the server takes calls and tells everybody who asks that it will not. Set it where
  // calls come through something that has to hear of it first. Both together: below the grace period of the process
  // manager.
  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds drain_timeout{25000};
  // Called once, on a thread of the server, when the device is lost, which only a new process can repair. Health
  // already says NOT_SERVING.
  std::function<void()> on_device_lost;
  // The source of all times but the date: deadlines, drains, durations. Tests pass their own.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
  // Date and time of day in the time zone of the process, which chat templates may write into prompts (strftime_now).
  std::function<absl::CivilSecond()> local_time = [] {
    return absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone());
  };
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_OPTIONS_H_
