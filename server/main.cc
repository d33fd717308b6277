// edgewise-server: reads the flags, runs a Server and handles signals. docs/server.md documents the flags, the signals
// and the exit codes.
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/flag_set.h"
#include "base/status_macros.h"
#include "server/base/build_id.h"
#include "server/base/options.h"
#include "server/observe/library_log.h"
#include "server/observe/log.h"
#include "server/server.h"

namespace edgewise::server {
namespace {

enum ExitCode { kOk = 0, kNotDrained = 1, kBadFlags = 2, kPortTaken = 3, kNoDevice = 4, kDeviceLost = 5 };

constexpr int64_t kPollMilliseconds = 20;
constexpr int kLoadGracePolls = 2000 / kPollMilliseconds;  // how long an exit waits for a model that loads
// How long connections are served after the port is closed, at most: longer than a proxy keeps one without knowing
// better (deploy/nginx-replicas.conf).
constexpr std::chrono::milliseconds kLastConnections{2000};
constexpr int kLargeBlock = 64 << 10;    // bytes
constexpr int kMostOfAnArena = 4 << 20;  // bytes that are free at its end

// The options, and the flags that set them. The default of an option is that of its flag.
struct Settings {
  Settings() {
    options.backend.device = "auto";
    Register();
  }
  Settings(const Settings&) = delete;

  ServerOptions options;
  uint32_t max_step_ms = static_cast<uint32_t>(options.max_step.count());
  uint32_t repository_poll_seconds = static_cast<uint32_t>(options.repository_poll / std::chrono::seconds(1));
  LogLevel log_level = LogLevel::kInfo;
  std::vector<std::string> models;
  FlagSet flags{"edgewise-server (--model_repository DIR | --model NAME=DIR) [flags]",
                absl::StrCat("edgewise-server ", EDGEWISE_VERSION,
                             ": inference with Transformers whose attention is sparse and chosen per input.\n\n"
                             "Every flag can be given in the environment: --max_inputs is EDGEWISE_MAX_INPUTS. The\n"
                             "flag wins. Switches are --name and --noname.\n\n"
                             "SIGTERM and SIGINT drain (a second one ends --drain_delay, the next exits at once),\n"
                             "SIGHUP reads the repository again, unless --repository_mode is none.\n"
                             "Exit codes: 0 drained, 1 a further signal, 2 bad flags or files, 3 a port is taken,\n"
                             "4 the device cannot be used, 5 the device was lost while serving.")};

 private:
  void Register() {
    constexpr std::chrono::milliseconds kNoTime(0), kDay = std::chrono::hours(24);
    flags.LetLastWin();
    flags.Section("Models");
    flags.Add("model_repository", "DIR", "folder of models: <name>/<version>/{config.json,model.safetensors}",
              &options.model_repository);
    flags.AddList("model", "NAME=DIR", "serve the model files in DIR as version 1 of NAME; may be given more than once",
                  &models);
    flags.AddChoice(
        "repository_mode",
        "when the repository is read after the start: never, by itself and at SIGHUP, or at SIGHUP alone",
        {{"none", RepositoryMode::kNone}, {"poll", RepositoryMode::kPoll}, {"explicit", RepositoryMode::kExplicit}},
        &options.repository_mode);
    flags.Add("repository_poll_seconds", "N", "seconds between two looks of --repository_mode=poll",
              &repository_poll_seconds, {1});
    flags.AddChoice("ready", "ready once any model serves, or all models of the repository",
                    {{"any", ReadyWhen::kAny}, {"all", ReadyWhen::kAll}}, &options.ready);
    flags.Section("Addresses");
    flags.Add("listen", "HOST:PORT", "gRPC address; port 0 takes any", &options.listen);
    flags.Add("metrics_listen", "HOST:PORT", "HTTP address of /metrics and /healthz; empty: none",
              &options.metrics_listen);
    flags.Add("http_listen", "HOST:PORT", "HTTP address of the JSON APIs, such as OpenAI's; empty: none",
              &options.http_listen);
    flags.AddList("http_hosts", "NAME", "host name that clients reach --http_listen by; may be given more than once",
                  &options.http_hosts);
    flags.AddList("http_origins", "ORIGIN", "origin of other pages that may call --http_listen; likewise",
                  &options.http_origins);
    flags.Add("max_connections", "N", "most connections", &options.max_connections, {1});
    flags.Add("max_connections_per_peer", "N",
              "most connections of one IPv4 address or IPv6 /64; 0: an eighth of all, at least 64",
              &options.max_connections_per_peer, {0});
    flags.AddSwitch("reflection", "serve gRPC reflection", &options.reflection);
    flags.Section("Device");
    flags.Add("device", "DEVICE", "auto, cpu or cuda[:N]", &options.backend.device);
    flags.Add("isa", "NAME", "CPU instruction set: auto, amx, avx512, avx2 or generic", &options.backend.isa);
    flags.Add("precision", "NAME", "arithmetic of the forward pass: fp32, or bf16 with fp32 sums on a GPU",
              &options.backend.precision);
    flags.Add("weights", "FORMAT", "how the CPU stores and multiplies weights: float32, bfloat16 or int8",
              &options.backend.weights);
    flags.Add("threads", "N", "CPU threads of the forward pass; 0: one per core that the process may use",
              &options.backend.num_threads, {0});
    flags.Section("Limits");
    flags.Add("max_inputs", "N", "most inputs of one request", &options.limits.max_inputs, {1});
    flags.Add("max_samples", "N", "most samples of one ensemble", &options.limits.max_samples, {1});
    flags.AddSwitch("allow_graphs", "take graphs in requests, to use instead of the model's edges",
                    &options.limits.allow_graphs);
    flags.Add("max_graph_edges", "N", "most edges of a graph given or returned", &options.limits.max_graph_edges);
    flags.Add("max_memory", "BYTES",
              "most that calls hold: messages, requests, results, unsent answers; 0: half of the machine's",
              &options.max_memory);
    flags.Add("max_message_bytes", "BYTES",
              "largest message, in and out; 0: 4 MiB, or what one input of a model needs; 64 MiB out",
              &options.max_message_bytes);
    flags.Add("max_result_bytes", "BYTES", "most that is held for the samples of one request while computed",
              &options.limits.max_result_bytes, {1});
    flags.Add("max_generations", "N", "generations that run side by side; others wait", &options.max_generations, {1});
    flags.Add("max_new_tokens", "N", "most tokens of one generation", &options.limits.max_new_tokens, {1});
    flags.Add("max_cache_bytes", "BYTES", "most of keys and values of the generations that run",
              &options.limits.max_cache_bytes, {1});
    flags.Section("Queue");
    flags.Add("max_queue_requests", "N", "requests that may wait; more get RESOURCE_EXHAUSTED",
              &options.queue.max_requests, {1});
    flags.Add("max_batch_requests", "N", "requests that are computed together; 1: each alone", &options.queue.max_batch,
              {1});
    flags.Add("max_queue_delay", "DURATION", "the longest wait that a request without a deadline is accepted for",
              &options.queue.max_delay, {kNoTime, kDay});
    flags.Add("max_step_ms", "N", "milliseconds of a step of the device, where rows can be put off", &max_step_ms, {1});
    flags.Section("Stopping and logs");
    flags.Add("drain_delay", "DURATION",
              "how long SIGTERM lets calls come in, with health NOT_SERVING, before it drains; 0: not at all",
              &options.drain_delay, {kNoTime, kDay});
    flags.Add("drain_timeout", "DURATION", "how long a drain waits for requests in flight", &options.drain_timeout,
              {kNoTime, kDay});
    flags.AddChoice("log_level", "the least that is logged",
                    {{"debug", LogLevel::kDebug},
                     {"info", LogLevel::kInfo},
                     {"warning", LogLevel::kWarning},
                     {"error", LogLevel::kError},
                     {"off", LogLevel::kOff}},
                    &log_level);
    flags.Section("Security");
    flags.Add("tls_certificate", "PEM", "with --tls_key: serve TLS", &options.security.tls_certificate);
    flags.Add("tls_key", "PEM", "of the certificate", &options.security.tls_key);
    flags.Add("tls_client_ca", "PEM", "clients must show a certificate signed by it", &options.security.tls_client_ca);
    flags.Add("auth_token_file", "FILE", "bearer tokens, one a line; every call must carry one",
              &options.security.auth_token_file);
    flags.AddSwitch("insecure_bind", "allow an address other than loopback without TLS",
                    &options.security.insecure_bind);
  }
};

int Fail(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "edgewise-server: %s\n", message.c_str());
  return code;
}

// Checks the flags together and completes the options. Returns a message about the first wrong flag.
absl::Status CheckFlags(Settings& settings) {
  ServerOptions& options = settings.options;
  for (const std::string& model : settings.models) {
    const size_t equals = model.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == model.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model=", model, ": NAME=DIR is expected, such as bert=path/to/bert"));
    }
    options.models.emplace_back(model.substr(0, equals), model.substr(equals + 1));
  }
  if (options.model_repository.empty() && options.models.empty()) {
    return absl::InvalidArgumentError(
        "--model_repository is missing: the folder of models; or give --model=NAME=DIR, the folder of one model");
  }
  if (options.max_message_bytes != 0 && options.max_message_bytes < 1024) {
    return absl::InvalidArgumentError("--max_message_bytes is below 1024");
  }
  if (options.max_message_bytes > (uint64_t{1} << 31) - 1) {
    return absl::InvalidArgumentError("--max_message_bytes is above 2147483647");
  }
  if (options.max_memory != 0 && options.max_memory < uint64_t{16} << 20) {
    return absl::InvalidArgumentError("--max_memory is below 16777216");
  }
  options.max_step = std::chrono::milliseconds(settings.max_step_ms);
  if (options.max_message_bytes != 0) options.limits.max_response_bytes = options.max_message_bytes;
  options.repository_poll = std::chrono::seconds(settings.repository_poll_seconds);
  return absl::OkStatus();
}

ExitCode CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return kPortTaken;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInternal:
      return kNoDevice;
    default:
      return kBadFlags;
  }
}

// The signals that Serve takes.
__attribute__((no_sanitize_address)) sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// They wait for it from the beginning on. The constructors of the libraries, which run before main, take as long as a
// process manager may wait before it stops what it has just started; this runs before them, and before any thread.
__attribute__((no_sanitize_address)) void BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}
__attribute__((section(".preinit_array"), used)) void (*const block_signals)() = BlockSignals;

void PrepareProcess() {
  // Large blocks (buffers of passes, weights, messages) go back to the system when they are freed. By default the
  // allocator moves its limit up to 32 MiB, and an arena keeps what lies below one block that is in use.
  mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  mallopt(M_TRIM_THRESHOLD, kMostOfAnArena);
  // Debian's Abseil looks for cycles in the order of locks, and aborts where it finds one. Tests keep that; here a
  // cycle that may never lead to a deadlock must not end the server, and the search costs more than the lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit core{0, 0};
  setrlimit(RLIMIT_CORE, &core);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

using Clock = std::chrono::steady_clock;

// Waits for SIGTERM or SIGINT, at most until `end`, and reads the repository again at every SIGHUP. The signals are
// blocked in every thread. Whether one came.
bool AwaitStop(Server& server, const sigset_t& signals, Clock::time_point end) {
  while (true) {
    const auto left = std::max(end - Clock::now(), Clock::duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec patience{seconds.count(), static_cast<long>((left - seconds) / std::chrono::nanoseconds(1))};
    const int signal =
        end == Clock::time_point::max() ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &patience);
    if (signal == SIGHUP) {
      const absl::Status status = server.Reload();
      if (!status.ok()) Log(LogLevel::kError, "repository not read", {{"error", std::string(status.message())}});
    } else if (signal > 0 || left == Clock::duration(0)) {
      return signal > 0;
    }
  }
}

// Returns when all calls have ended and the server has stopped. A signal ends the process.
void Drain(Server& server, const sigset_t& signals, std::chrono::milliseconds timeout) {
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    server.Drain(timeout);
    drained = true;
  });
  int polls_since_end = 0;
  while (!drained) {
    if (server.calls_ended() && ++polls_since_end > kLoadGracePolls) {
      Log(LogLevel::kWarning, "left while a model loads");
      StopLog();
      _exit(kOk);
    }
    const timespec poll{0, kPollMilliseconds * 1000 * 1000};
    const int signal = sigtimedwait(&signals, nullptr, &poll);
    if (signal > 0 && signal != SIGHUP) _exit(kNotDrained);
  }
  drain.join();
}

// InvalidArgument: the arguments or the environment.
absl::Status ReadFlags(const std::vector<std::string>& arguments, Settings& settings,
                       std::vector<std::string>& misspelt) {
  RETURN_IF_ERROR(settings.flags.Parse(arguments));
  RETURN_IF_ERROR(settings.flags.ReadEnvironment("EDGEWISE_", environ, &misspelt));
  return CheckFlags(settings);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  Settings settings;
  for (const std::string& argument : arguments) {
    if (argument != "--help" && argument != "-h" && argument != "--version") continue;
    const std::string version = absl::StrCat("edgewise-server ", EDGEWISE_VERSION, " (build ", BuildId(), ")\n");
    std::printf("%s", argument == "--version" ? version.c_str() : settings.flags.Help().c_str());
    return kOk;
  }
  std::vector<std::string> misspelt;
  if (const absl::Status status = ReadFlags(arguments, settings, misspelt); !status.ok()) {
    for (const std::string& variable : misspelt) Fail(kBadFlags, variable);  // perhaps what is missing
    return Fail(kBadFlags, std::string(status.message()));
  }
  ServerOptions& options = settings.options;
  PrepareProcess();
  StartLog(settings.log_level);
  RouteLibraryLogs();
  for (const std::string& variable : misspelt) Log(LogLevel::kWarning, "environment ignored", {{"reason", variable}});
  std::atomic<bool> device_lost = false;
  options.on_device_lost = [&device_lost] {
    device_lost = true;
    kill(getpid(), SIGTERM);  // what is in flight fails at once, so draining is short
  };
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) {
    const ExitCode code = CodeOf(server.status());
    if (!StopLog()) _exit(code);
    return Fail(code, std::string(server.status().message()));
  }
  AwaitStop(**server, Signals(), Clock::time_point::max());
  if (options.drain_delay.count() > 0 && !device_lost) {
    (*server)->AnnounceDrain();
    if (!AwaitStop(**server, Signals(), Clock::now() + options.drain_delay)) {
      (*server)->StopListening();
      AwaitStop(**server, Signals(), Clock::now() + std::min(options.drain_delay, kLastConnections));
    }
  }
  Drain(**server, Signals(), options.drain_timeout);
  if (device_lost) {
    std::fflush(stdout);
    StopLog();
    _exit(kDeviceLost);  // a driver in that state may not come back from freeing memory
  }
  server->reset();
  std::fflush(stdout);
  if (!StopLog()) _exit(kOk);  // nobody reads stderr
  return kOk;
}

}  // namespace
}  // namespace edgewise::server

int main(int argc, char** argv) { return edgewise::server::Main(argc, argv); }
