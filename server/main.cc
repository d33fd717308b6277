// edgewise-server: reads the flags, runs a Server and handles signals. docs/server.md documents the flags, the signals
// and the exit codes.
#include <absl/flags/marshalling.h>
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/build_id.h"
#include "server/observe/library_log.h"
#include "server/observe/log.h"
#include "server/options.h"
#include "server/server.h"

namespace edgewise::server {
namespace {

// The names of an option's values, for its flag.
template <typename T>
using Names = std::vector<std::pair<T, const char*>>;
const Names<RepositoryMode> kRepositoryModes = {
    {RepositoryMode::kNone, "none"}, {RepositoryMode::kPoll, "poll"}, {RepositoryMode::kExplicit, "explicit"}};
const Names<ReadyWhen> kReadyWhens = {{ReadyWhen::kAny, "any"}, {ReadyWhen::kAll, "all"}};

template <typename T>
bool ParseName(const Names<T>& names, absl::string_view text, T* value, std::string* error) {
  for (const auto& [known, name] : names) {
    if (text == name) {
      *value = known;
      return true;
    }
    absl::StrAppend(error, error->empty() ? "allowed are " : ", ", name);
  }
  return false;
}

template <typename T>
std::string NameOf(const Names<T>& names, T value) {
  return std::find_if(names.begin(), names.end(), [&](const auto& known) { return known.first == value; })->second;
}

}  // namespace

// For absl::ParseFlag and absl::UnparseFlag.
static bool AbslParseFlag(absl::string_view text, RepositoryMode* mode, std::string* error) {
  return ParseName(kRepositoryModes, text, mode, error);
}
static std::string AbslUnparseFlag(RepositoryMode mode) { return NameOf(kRepositoryModes, mode); }
static bool AbslParseFlag(absl::string_view text, ReadyWhen* ready, std::string* error) {
  return ParseName(kReadyWhens, text, ready, error);
}
static std::string AbslUnparseFlag(ReadyWhen ready) { return NameOf(kReadyWhens, ready); }

namespace {

enum ExitCode { kOk = 0, kNotDrained = 1, kBadFlags = 2, kPortTaken = 3, kNoDevice = 4, kDeviceLost = 5 };

constexpr int64_t kPollMilliseconds = 20;
constexpr int kLoadGracePolls = 2000 / kPollMilliseconds;  // how long an exit waits for a model that loads
constexpr int kLargeBlock = 64 << 10;                      // bytes
constexpr int kMostOfAnArena = 4 << 20;                    // bytes that are free at its end

// A flag of the command line, bound to the option that it sets. The default of the option is that of the flag.
struct Flag {
  std::string name, help;
  bool is_switch;
  std::function<bool(const std::string& text, std::string* error)> parse;
  std::function<std::string()> value;
};

template <typename T>
Flag Bind(const char* name, T& option, const char* help) {
  return {name, help, std::is_same_v<T, bool>,
          [&option](const std::string& text, std::string* error) { return absl::ParseFlag<T>(text, &option, error); },
          [&option] { return absl::UnparseFlag<T>(option); }};
}

// The options as flags set them.
struct Settings {
  Settings() { options.backend.device = "auto"; }
  Settings(const Settings&) = delete;

  ServerOptions options;
  absl::Duration drain_timeout = absl::FromChrono(options.drain_timeout);
  absl::Duration max_queue_delay = absl::FromChrono(options.queue.max_delay);
  uint32_t max_step_ms = static_cast<uint32_t>(options.max_step.count());
  uint32_t repository_poll_seconds = static_cast<uint32_t>(options.repository_poll / std::chrono::seconds(1));
  std::string log_level = "info";
  std::vector<std::string> models;

  const std::vector<Flag> flags = {
      Bind("model_repository", options.model_repository,
           "Folder of models: <name>/<version>/{config.json,model.safetensors}."),
      {"model", "NAME=DIR: serve the model files in DIR as version 1 of NAME. May be given again.", false,
       [this](const std::string& text, std::string*) { return models.push_back(text), true; },
       [] { return std::string(); }},
      Bind("repository_mode", options.repository_mode,
           "When the repository is read after the start: none (never), poll, explicit (at SIGHUP)."),
      Bind("repository_poll_seconds", repository_poll_seconds, "Seconds between two looks of --repository_mode=poll."),
      Bind("ready", options.ready, "Ready once any model serves, or all models of the repository: any | all."),
      Bind("listen", options.listen, "gRPC address, HOST:PORT; port 0 takes any."),
      Bind("metrics_listen", options.metrics_listen, "HTTP address of /metrics and /healthz; empty: none."),
      Bind("device", options.backend.device, "auto | cpu | cuda[:N]."),
      Bind("isa", options.backend.isa, "CPU instruction set: auto | amx | avx512 | avx2 | generic."),
      Bind("precision", options.backend.precision,
           "Arithmetic of the forward pass: fp32, or bf16 with fp32 sums on a GPU."),
      Bind("weights", options.backend.weights, "How the CPU stores and multiplies weights: float32 | bfloat16 | int8."),
      Bind("threads", options.backend.num_threads,
           "CPU threads of the forward pass; 0: one per core that the process may use."),
      Bind("max_inputs", options.limits.max_inputs, "Most inputs of one request."),
      Bind("max_samples", options.limits.max_samples, "Most samples of one ensemble."),
      Bind("allow_graphs", options.limits.allow_graphs,
           "Take graphs in requests, to use instead of the model's edges."),
      Bind("max_graph_edges", options.limits.max_graph_edges, "Most edges of a graph given or returned."),
      Bind("max_memory", options.max_memory,
           "Most bytes that calls hold: messages, requests, results, unsent answers; 0: half of the machine's."),
      Bind("max_connections", options.max_connections, "Most connections."),
      Bind("max_connections_per_peer", options.max_connections_per_peer, "Most connections of one IP address."),
      Bind("max_message_bytes", options.max_message_bytes,
           "Largest message, in and out; 0: 4 MiB, or what one input of a model needs; 64 MiB out."),
      Bind("max_result_bytes", options.limits.max_result_bytes,
           "Most bytes held for the samples of one request while computed."),
      Bind("max_generations", options.max_generations, "Generations that run side by side; others wait."),
      Bind("max_new_tokens", options.limits.max_new_tokens, "Most tokens of one generation."),
      Bind("max_cache_bytes", options.limits.max_cache_bytes,
           "Most bytes of keys and values of the generations that run."),
      Bind("reflection", options.reflection, "Serve gRPC reflection."),
      Bind("drain_timeout", drain_timeout, "How long SIGTERM waits for requests in flight."),
      Bind("max_queue_requests", options.queue.max_requests, "Requests that may wait; more get RESOURCE_EXHAUSTED."),
      Bind("max_batch_requests", options.queue.max_batch, "Requests that are computed together; 1: each alone."),
      Bind("max_queue_delay", max_queue_delay, "The longest wait that a request without a deadline is accepted for."),
      Bind("max_step_ms", max_step_ms, "Milliseconds of a step of the device, where rows can be put off."),
      Bind("log_level", log_level, "debug | info | warning | error | off."),
      Bind("tls_certificate", options.security.tls_certificate, "PEM file; with --tls_key: serve TLS."),
      Bind("tls_key", options.security.tls_key, "PEM file."),
      Bind("tls_client_ca", options.security.tls_client_ca, "PEM file; clients must show a certificate signed by it."),
      Bind("auth_token_file", options.security.auth_token_file,
           "Bearer tokens, one a line; every call must carry one."),
      Bind("insecure_bind", options.security.insecure_bind, "Allow an address other than loopback without TLS."),
  };

  const Flag* Find(const std::string& name) const {
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& known) { return known.name == name; });
    return flag == flags.end() ? nullptr : &*flag;
  }
};

int Fail(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "edgewise-server: %s\n", message.c_str());
  return code;
}

void PrintHelp(const Settings& settings) {
  std::printf("edgewise-server %s: inference with Transformers whose attention is sparse and chosen per input.\n\n",
              EDGEWISE_VERSION);
  for (const Flag& flag : settings.flags) {
    std::printf("  --%s=%s\n      %s\n", flag.name.c_str(), flag.value().c_str(), flag.help.c_str());
  }
  std::printf(
      "\nSIGTERM and SIGINT drain (a second one exits at once), SIGHUP reads the repository again,\n"
      "unless --repository_mode is none.\n"
      "Exit codes: 0 drained, 1 a second signal, 2 bad flags or files, 3 a port is taken, 4 the device cannot be\n"
      "used, 5 the device was lost while serving.\n");
}

// Takes --name=value, --name value, --switch and --noswitch. Returns a message about the first wrong argument.
std::string ParseFlags(const std::vector<std::string>& arguments, const Settings& settings) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.rfind("--", 0) != 0) return absl::StrCat("\"", argument, "\" is not a flag; see --help");
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const Flag* flag = settings.Find(name);
    const bool negated = equals == std::string::npos && !flag && name.rfind("no", 0) == 0;
    if (negated) flag = settings.Find(name = name.substr(2));
    if (!flag) return absl::StrCat("--", name, " is not a flag; see --help");
    if (negated && !flag->is_switch) return absl::StrCat("--no", name, ": --", name, " is not on or off");
    if (equals == std::string::npos) {
      if (flag->is_switch) {
        value = negated ? "false" : "true";
      } else if (++i < arguments.size()) {
        value = arguments[i];
      } else {
        return absl::StrCat("--", name, " needs a value");
      }
    }
    std::string error;
    if (!flag->parse(value, &error)) {
      return absl::StrCat("--", name, "=", value, ": Illegal value '", value, "' specified for flag '", name, "'",
                          error.empty() ? "" : "; ", error);
    }
  }
  return "";
}

// Checks the flags together and completes the options. Returns a message about the first wrong flag.
std::string CheckFlags(Settings& settings) {
  ServerOptions& options = settings.options;
  for (const std::string& model : settings.models) {
    const size_t equals = model.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == model.size()) {
      return absl::StrCat("--model=", model, ": NAME=DIR is expected, such as bert=path/to/bert");
    }
    options.models.emplace_back(model.substr(0, equals), model.substr(equals + 1));
  }
  if (options.model_repository.empty() && options.models.empty()) {
    return "--model_repository is missing: the folder of models; or give --model=NAME=DIR, the folder of one model";
  }
  if (options.backend.num_threads < 0) return "--threads is negative; 0 means one per core that the process may use";
  const std::pair<const char*, uint64_t> positive[] = {{"max_inputs", options.limits.max_inputs},
                                                       {"max_samples", options.limits.max_samples},
                                                       {"max_queue_requests", options.queue.max_requests},
                                                       {"max_batch_requests", options.queue.max_batch},
                                                       {"max_result_bytes", options.limits.max_result_bytes},
                                                       {"max_new_tokens", options.limits.max_new_tokens},
                                                       {"max_cache_bytes", options.limits.max_cache_bytes},
                                                       {"max_generations", options.max_generations},
                                                       {"max_connections", options.max_connections},
                                                       {"max_connections_per_peer", options.max_connections_per_peer},
                                                       {"max_step_ms", settings.max_step_ms},
                                                       {"repository_poll_seconds", settings.repository_poll_seconds}};
  for (const auto& [name, value] : positive) {
    if (value == 0) return absl::StrCat("--", name, " is 0; at least 1 is needed");
  }
  if (options.max_message_bytes != 0 && options.max_message_bytes < 1024) return "--max_message_bytes is below 1024";
  if (options.max_message_bytes > (uint64_t{1} << 31) - 1) return "--max_message_bytes is above 2147483647";
  if (options.max_memory != 0 && options.max_memory < uint64_t{16} << 20) return "--max_memory is below 16777216";
  for (const auto& [name, value] :
       {std::pair("drain_timeout", settings.drain_timeout), std::pair("max_queue_delay", settings.max_queue_delay)}) {
    if (value < absl::ZeroDuration()) return absl::StrCat("--", name, " is negative");
    if (value > absl::Hours(24)) return absl::StrCat("--", name, " is above 24h");
  }
  options.drain_timeout = absl::ToChronoMilliseconds(settings.drain_timeout);
  options.queue.max_delay = absl::ToChronoMilliseconds(settings.max_queue_delay);
  options.max_step = std::chrono::milliseconds(settings.max_step_ms);
  if (options.max_message_bytes != 0) options.limits.max_response_bytes = options.max_message_bytes;
  options.repository_poll = std::chrono::seconds(settings.repository_poll_seconds);
  return "";
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

// Serves until SIGTERM or SIGINT. The signals are blocked in every thread.
void Serve(Server& server, const sigset_t& signals, std::chrono::milliseconds drain_timeout) {
  std::atomic<bool> drained = false;
  std::thread drain;
  int polls_since_end = 0;
  while (!drained) {
    if (server.calls_ended() && ++polls_since_end > kLoadGracePolls) {
      Log(LogLevel::kWarning, "left while a model loads");
      StopLog();
      _exit(kOk);
    }
    const timespec poll{0, kPollMilliseconds * 1000 * 1000};
    const int signal = drain.joinable() ? sigtimedwait(&signals, nullptr, &poll) : sigwaitinfo(&signals, nullptr);
    if (signal == SIGHUP) {
      if (drain.joinable()) continue;
      const absl::Status status = server.Reload();
      if (!status.ok()) Log(LogLevel::kError, "repository not read", {{"error", std::string(status.message())}});
    } else if (signal > 0 && drain.joinable()) {
      _exit(kNotDrained);
    } else if (signal > 0) {
      drain = std::thread([&] {
        server.Drain(drain_timeout);
        drained = true;
      });
    }
  }
  drain.join();
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  Settings settings;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "--version") {
      argument == "--help"
          ? PrintHelp(settings)
          : static_cast<void>(std::printf("edgewise-server %s (build %s)\n", EDGEWISE_VERSION, BuildId().c_str()));
      return kOk;
    }
  }
  std::string error = ParseFlags(arguments, settings);
  if (error.empty()) error = CheckFlags(settings);
  LogLevel level = LogLevel::kInfo;
  if (error.empty() && !ParseLogLevel(settings.log_level, level)) {
    error = absl::StrCat("--log_level=", settings.log_level, ": allowed are debug, info, warning, error and off");
  }
  if (!error.empty()) return Fail(kBadFlags, error);
  ServerOptions& options = settings.options;
  PrepareProcess();
  StartLog(level);
  RouteLibraryLogs();
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
  Serve(**server, Signals(), options.drain_timeout);
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
