// edgewise-server: flags in, a Server out, signals handled. The only file that reads flags. docs/server.md documents
// them, the signals and the exit codes.
#include <absl/flags/flag.h>
#include <absl/flags/reflection.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "server/observe/library_log.h"
#include "server/observe/log.h"
#include "server/options.h"
#include "server/server.h"

ABSL_FLAG(std::string, model_repository, "", "Folder of models: <name>/<version>/{config.json,model.safetensors}.");
ABSL_FLAG(std::string, listen, "127.0.0.1:8001", "gRPC address, HOST:PORT; port 0 takes any.");
ABSL_FLAG(std::string, metrics_listen, "127.0.0.1:8002", "HTTP address of /metrics and /healthz; empty: none.");
ABSL_FLAG(std::string, device, "auto", "auto | cpu | cuda[:N].");
ABSL_FLAG(std::string, isa, "auto", "CPU instruction set: auto | avx512 | avx2 | generic.");
ABSL_FLAG(std::string, precision, "fp32", "Arithmetic of the forward pass: fp32, or bf16 with fp32 sums on a GPU.");
ABSL_FLAG(int, threads, 0, "CPU threads of the forward pass; 0: one per core.");
ABSL_FLAG(uint32_t, max_inputs, 1024, "Most inputs of one request.");
ABSL_FLAG(uint32_t, max_samples, 256, "Most samples of one ensemble.");
ABSL_FLAG(int, max_message_bytes, 64 << 20, "Largest message, in and out.");
ABSL_FLAG(uint32_t, max_queue_requests, 256, "Requests that may wait; more get RESOURCE_EXHAUSTED.");
ABSL_FLAG(bool, allow_graphs, false, "Take graphs in requests, to use instead of the model's edges.");
ABSL_FLAG(uint64_t, max_graph_edges, 4 << 20, "Most edges of a graph given or returned.");
ABSL_FLAG(uint64_t, max_result_bytes, 256 << 20, "Most bytes held for the samples of one request while computed.");
ABSL_FLAG(uint32_t, max_generations, 16, "Generations that run side by side; others wait.");
ABSL_FLAG(uint32_t, max_new_tokens, 4096, "Most tokens of one generation.");
ABSL_FLAG(uint64_t, max_cache_bytes, uint64_t{2} << 30, "Most bytes of keys and values of the generations that run.");
ABSL_FLAG(bool, reflection, false, "Serve gRPC reflection.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(25), "How long SIGTERM waits for requests in flight.");
ABSL_FLAG(std::string, log_level, "info", "debug | info | warning | error | off.");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file; with --tls_key: serve TLS.");
ABSL_FLAG(std::string, tls_key, "", "PEM file.");
ABSL_FLAG(std::string, tls_client_ca, "", "PEM file; clients must show a certificate signed by it.");
ABSL_FLAG(std::string, auth_token_file, "", "Bearer tokens, one a line; every call must carry one.");
ABSL_FLAG(bool, insecure_bind, false, "Allow an address other than loopback without TLS.");

namespace edgewise::server {
namespace {

enum ExitCode { kOk = 0, kNotDrained = 1, kBadFlags = 2, kPortTaken = 3, kNoDevice = 4, kDeviceLost = 5 };

constexpr int64_t kPollMilliseconds = 20;
constexpr int kLoadGracePolls = 2000 / kPollMilliseconds;  // how long an exit waits for a model that loads

constexpr const char* kFlagNames[] = {"model_repository",
                                      "listen",
                                      "metrics_listen",
                                      "device",
                                      "isa",
                                      "precision",
                                      "threads",
                                      "max_inputs",
                                      "max_samples",
                                      "allow_graphs",
                                      "max_graph_edges",
                                      "max_message_bytes",
                                      "max_result_bytes",
                                      "max_generations",
                                      "max_new_tokens",
                                      "max_cache_bytes",
                                      "reflection",
                                      "drain_timeout",
                                      "max_queue_requests",
                                      "log_level",
                                      "tls_certificate",
                                      "tls_key",
                                      "tls_client_ca",
                                      "auth_token_file",
                                      "insecure_bind"};

int Fail(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "edgewise-server: %s\n", message.c_str());
  return code;
}

bool IsFlag(const std::string& name) {
  for (const char* known : kFlagNames) {
    if (name == known) return true;
  }
  return false;
}

void PrintHelp() {
  std::printf("edgewise-server %s: inference with Transformers whose attention is sparse and chosen per input.\n\n",
              EDGEWISE_VERSION);
  for (const char* name : kFlagNames) {
    const absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(name);
    std::printf("  --%s=%s\n      %s\n", name, flag.DefaultValue().c_str(), flag.Help().c_str());
  }
  std::printf(
      "\nSIGTERM and SIGINT drain (a second one exits at once), SIGHUP reads the repository again.\n"
      "Exit codes: 0 drained, 1 a second signal, 2 bad flags or files, 3 a port is taken, 4 the device cannot be\n"
      "used, 5 the device was lost while serving.\n");
}

// --name=value, --name value, --bool, --nobool. absl's own parser would exit with 1 and read flag files.
std::string ParseFlags(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.rfind("--", 0) != 0) return absl::StrCat("\"", argument, "\" is not a flag; see --help");
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const bool negated = equals == std::string::npos && !IsFlag(name) && name.rfind("no", 0) == 0;
    if (negated) name = name.substr(2);
    if (!IsFlag(name)) return absl::StrCat("--", name, " is not a flag; see --help");
    absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(name);
    if (negated && !flag.IsOfType<bool>()) return absl::StrCat("--no", name, ": --", name, " is not on or off");
    if (equals == std::string::npos) {
      if (flag.IsOfType<bool>()) {
        value = negated ? "false" : "true";
      } else if (++i < arguments.size()) {
        value = arguments[i];
      } else {
        return absl::StrCat("--", name, " needs a value");
      }
    }
    std::string error;
    if (!flag.ParseFrom(value, &error)) return absl::StrCat("--", name, "=", value, ": ", error);
  }
  return "";
}

// What the flags say; a message when they cannot be meant.
std::string FillOptions(ServerOptions& options) {
  options.model_repository = absl::GetFlag(FLAGS_model_repository);
  options.listen = absl::GetFlag(FLAGS_listen);
  options.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  options.backend = {absl::GetFlag(FLAGS_device), absl::GetFlag(FLAGS_threads), absl::GetFlag(FLAGS_isa),
                     absl::GetFlag(FLAGS_precision)};
  options.limits.max_inputs = absl::GetFlag(FLAGS_max_inputs);
  options.limits.max_samples = absl::GetFlag(FLAGS_max_samples);
  options.limits.allow_graphs = absl::GetFlag(FLAGS_allow_graphs);
  options.limits.max_graph_edges = absl::GetFlag(FLAGS_max_graph_edges);
  options.limits.max_result_bytes = absl::GetFlag(FLAGS_max_result_bytes);
  options.limits.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  options.limits.max_cache_bytes = absl::GetFlag(FLAGS_max_cache_bytes);
  options.max_generations = absl::GetFlag(FLAGS_max_generations);
  options.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  options.queue.max_requests = absl::GetFlag(FLAGS_max_queue_requests);
  options.reflection = absl::GetFlag(FLAGS_reflection);
  const absl::Duration drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.drain_timeout = absl::ToChronoMilliseconds(drain_timeout);
  options.security = {absl::GetFlag(FLAGS_tls_certificate), absl::GetFlag(FLAGS_tls_key),
                      absl::GetFlag(FLAGS_tls_client_ca), absl::GetFlag(FLAGS_auth_token_file),
                      absl::GetFlag(FLAGS_insecure_bind)};
  if (options.model_repository.empty()) return "--model_repository is missing: the folder of models";
  if (options.backend.num_threads < 0) return "--threads is negative; 0 means one per core";
  if (options.limits.max_inputs == 0) return "--max_inputs is 0; at least 1 is needed";
  if (options.limits.max_samples == 0) return "--max_samples is 0; at least 1 is needed";
  if (options.queue.max_requests == 0) return "--max_queue_requests is 0; at least 1 is needed";
  if (options.limits.max_result_bytes == 0) return "--max_result_bytes is 0; at least 1 is needed";
  if (options.limits.max_new_tokens == 0) return "--max_new_tokens is 0; at least 1 is needed";
  if (options.limits.max_cache_bytes == 0) return "--max_cache_bytes is 0; at least 1 is needed";
  if (options.max_generations == 0) return "--max_generations is 0; at least 1 is needed";
  if (options.max_message_bytes < 1024) return "--max_message_bytes is below 1024";
  if (drain_timeout < absl::ZeroDuration()) return "--drain_timeout is negative";
  if (drain_timeout > absl::Hours(24)) return "--drain_timeout is above 24h";
  options.limits.max_response_bytes = static_cast<uint64_t>(options.max_message_bytes);
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

void PrepareProcess() {
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
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "--version") {
      argument == "--help" ? PrintHelp() : static_cast<void>(std::printf("edgewise-server %s\n", EDGEWISE_VERSION));
      return kOk;
    }
  }
  if (const std::string error = ParseFlags(arguments); !error.empty()) return Fail(kBadFlags, error);
  ServerOptions options;
  if (const std::string error = FillOptions(options); !error.empty()) return Fail(kBadFlags, error);
  LogLevel level;
  if (!ParseLogLevel(absl::GetFlag(FLAGS_log_level), level)) {
    return Fail(kBadFlags, absl::StrCat("--log_level=", absl::GetFlag(FLAGS_log_level),
                                        ": allowed are debug, info, warning, error and off"));
  }
  PrepareProcess();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
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
  Serve(**server, signals, options.drain_timeout);
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
