#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/base/address.h"
#include "server/base/memory.h"
#include "server/guard/auth.h"
#include "server/guard/awaited.h"
#include "server/guard/listener.h"
#include "server/guard/watchdog.h"
#include "server/handler/handler.h"
#include "server/handler/message_limit.h"
#include "server/http/native.h"
#include "server/http/openai.h"
#include "server/http/openapi.h"
#include "server/http/page.h"
#include "server/http/port.h"
#include "server/http/state.h"
#include "server/http/tei.h"
#include "server/models/loader.h"
#include "server/models/repository.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/oip/routes.h"
#include "server/oip/service.h"
#include "server/schedule/engine.h"
#include "server/schedule/queue.h"
#include "server/wire/call_thread.h"
#include "server/wire/health.h"
#include "server/wire/reflection.h"
#include "server/wire/service.h"

namespace edgewise::server {
namespace {

constexpr uint32_t kOtherFiles = 32;
// The names under which grpc.health.v1 knows the server as a whole: none, and those of its services.
constexpr const char* kWholeServer[] = {"", "edgewise.v1.InferenceService", "inference.GRPCInferenceService"};
constexpr char kWaitsForFailed[] = "--ready=all waits for models that failed to load";
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr auto kStopWork = std::chrono::seconds(5);      // the layer that runs, at most
constexpr auto kFlushAnswers = std::chrono::seconds(2);  // longer than a busy machine takes

void Configure(uint64_t memory, grpc::ServerBuilder& builder) {
  // Bytes that gRPC holds itself. Above it, gRPC ends streams one by one.
  builder.SetResourceQuota(grpc::ResourceQuota("calls").Resize(memory));
  builder.SetMaxReceiveMessageSize(-1);  // RPCs compare with their own limit, which changes with the models
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_ENABLE_CHANNELZ, 0},
      {GRPC_ARG_MAX_METADATA_SIZE, 2 * kMaxMetadata},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, 100},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300000},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, 1800000},  // GOAWAY: clients find new replicas; calls go on
      {GRPC_ARG_KEEPALIVE_TIME_MS, 30000},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000},
      // Else a connection without a call is thrown out that is pinged more often than once in two hours.
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2}};
  for (const auto& [name, value] : arguments) builder.AddChannelArgument(name, value);
}

// The limits of each port of calls. The process needs descriptors for other things too.
ConnectionLimits LimitsOf(const ServerOptions& options) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const uint32_t ports = options.http_listen.empty() ? 1 : 2;
  const auto room =
      static_cast<uint32_t>(std::clamp<rlim_t>(files.rlim_cur, kOtherFiles + ports, 1 << 20)) - kOtherFiles;
  return {std::min(options.max_connections, room / ports), options.max_connections_per_peer};
}

HttpPortOptions MetricsPort(const ServerOptions& options) {
  HttpPortOptions port{.flag = "--metrics_listen", .address = options.metrics_listen};
  port.idle_timeout = port.head_timeout = port.write_timeout = std::chrono::seconds(2);
  return port;
}

HttpPortOptions HttpFront(const ServerOptions& options) {
  return {.flag = "--http_listen",
          .address = options.http_listen,
          .connections = LimitsOf(options),
          .threads = CallThreadCount(),
          .write_timeout = options.unread_timeout,
          .for_browsers = true,
          .hosts = options.http_hosts,
          .origins = options.http_origins};
}

const char* StateName(ModelState state) {
  static constexpr const char* kNames[] = {"loading", "ready", "failed", "draining"};
  return kNames[static_cast<int>(state)];
}

}  // namespace

// No request may take all of the memory: its results half of it, its answer an eighth, since an answer is held as
// objects and as bytes.
ServerOptions WithinMemory(ServerOptions options) {
  const uint64_t memory = MemoryForCalls(options, {});
  options.limits.max_result_bytes = std::min(options.limits.max_result_bytes, memory / 2);
  options.limits.max_response_bytes = std::min(options.limits.max_response_bytes, memory / 8);
  return options;
}

// In order of construction; torn down in reverse.
struct Server::Parts {
  explicit Parts(const ServerOptions& given)
      : options(WithinMemory(given)),
        memory(MemoryForCalls(options, {})),
        largest_message(MessageLimit(options, memory.limit(), {})),
        queue(options.queue, options.clock),
        repository({options.model_repository, options.models}, metrics,
                   {options.limits.max_cache_bytes, options.max_generations, options.limits.max_samples},
                   Seconds(options.warm_up)),
        handler(options, memory, repository, queue),
        service(rpcs),
        open_inference(rpcs, [this] { return is_ready(); }) {}

  const ServerOptions options;
  MemoryLedger memory;
  std::atomic<uint64_t> largest_message;
  Metrics metrics{options.clock};
  std::unique_ptr<Backend> backend;
  RequestQueue queue;
  Repository repository;
  RequestHandler handler;
  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  AwaitedCalls awaited{options.clock};
  Watchdog watchdog{options, awaited, memory, backend, *gate, metrics};
  LoneClient lone_client;
  CallLog call_log{metrics, options.clock};
  CallParts calls{options, handler,         repository, metrics,  memory,
                  awaited, largest_message, *gate,      call_log, lone_client};
  RpcContext rpcs{calls};
  InferenceServiceImpl service;
  OpenInferenceService open_inference;
  HealthService health{rpcs};
  ReflectionService reflection{rpcs};
  std::unique_ptr<Listener> listener;
  std::unique_ptr<CallThreads> call_threads;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Loader> loader;
  Routes metrics_routes, http_routes;
  std::unique_ptr<HttpPort> metrics_port, http_port;
  std::atomic<bool> settled = false;  // every version was tried once
  std::atomic<bool> started = false;  // and what the server waits for to be ready came (ServerOptions::ready)
  std::atomic<bool> any = false;      // a model serves
  std::atomic<bool> ready = false;
  std::atomic<bool> device_lost = false;
  std::atomic<bool> leaving = false;  // AnnounceDrain
  absl::Mutex health_mutex;
  std::map<std::string, bool> serving ABSL_GUARDED_BY(health_mutex);  // by model name, removed ones included
  std::string failed_models ABSL_GUARDED_BY(health_mutex);            // that ReadyWhen::kAll waits for
  bool drained = false;
  std::atomic<bool> calls_ended = false;

  // After every change in the repository, on the thread that made it.
  void UpdateHealth() {
    const absl::MutexLock lock(&health_mutex);
    if (handler.draining()) return;
    if (repository.settled()) settled = true;
    const std::vector<ModelStatus> models = repository.List();
    memory.SetLimit(MemoryForCalls(options, models));
    largest_message = MessageLimit(options, memory.limit(), models);
    watchdog.MeasureModels();
    if (device_lost) {
      ready = false;
      for (const char* all : kWholeServer) health.Set(all, false);
      for (const auto& [name, serves] : serving) health.Set(name, false);
      return;
    }
    for (auto& [name, serves] : serving) serves = false;
    for (const ModelStatus& status : models) serving[status.name] |= status.loaded != nullptr;
    any = false;
    std::set<std::string> missing;
    for (const ModelStatus& status : models) {
      any = any || serving[status.name];
      if (!serving[status.name]) missing.insert(status.name);
    }
    if (settled && any && (missing.empty() || options.ready == ReadyWhen::kAny)) started = true;
    ready = started && any;
    const bool waits = settled && !started && options.ready == ReadyWhen::kAll;
    const std::string awaited = waits ? absl::StrJoin(missing, ", ") : "";
    if (!awaited.empty() && awaited != failed_models) {
      Log(LogLevel::kError, "not ready", {{"reason", kWaitsForFailed}, {"models", awaited}});
    }
    failed_models = awaited;
    for (const auto& [name, serves] : serving) health.Set(name, serves);
    for (const char* all : kWholeServer) health.Set(all, ready);
  }

  // On the engine's thread, once.
  void LoseDevice() {
    device_lost = true;
    UpdateHealth();
    Log(LogLevel::kError, "device lost", {{"device", backend->device()}});
    if (options.on_device_lost) options.on_device_lost();
  }

  std::string MetricsPage() {
    metrics.SetTransport(memory.used(), memory.limit(), listener->connections(), handler.preparations().count(),
                         Seconds(listener->LongestWait()));
    metrics.SetCache(queue.cache_bytes(), options.limits.max_cache_bytes);
    metrics.SetWorkingMemory(backend->WorkingBytes());
    metrics.SetDeviceMemory(backend->Memory().value_or(DeviceMemory()), queue.cache_bytes());
    for (const ModelStatus& model : repository.List()) {
      if (model.loaded) metrics.ForModel(model.name, model.version)->SetCapacity(model.loaded->costs->Capacity());
    }
    return metrics.Render();
  }

  // Opens both ports of HTTP; that of calls waits for the engine.
  absl::Status OpenHttp(const std::shared_ptr<Certificates>& certificates) {
    const StateOfServer state{[this] { return MetricsPage(); }, [this](std::string* json) { return Healthz(json); }};
    AddStateRoutes(metrics_routes, state);
    if (!options.metrics_listen.empty()) {
      ASSIGN_OR_RETURN(metrics_port, HttpPort::Open(MetricsPort(options), metrics_routes));
      metrics_port->Start();
    }
    if (options.http_listen.empty()) return absl::OkStatus();
    AddStateRoutes(http_routes, state);
    AddOpenAiRoutes(http_routes, calls);
    AddTeiRoutes(http_routes, calls);
    AddCohereRoutes(http_routes, calls);
    AddNativeRoutes(http_routes, calls);
    AddOpenInferenceRoutes(http_routes, calls);
    AddPageRoutes(http_routes);
    AddOpenApiRoute(http_routes);
    metrics.ExpectHttp("_other");
    for (const Route& route : http_routes.all()) metrics.ExpectHttp(route.path);
    ASSIGN_OR_RETURN(http_port, HttpPort::Open(HttpFront(options), http_routes, &calls, certificates));
    return absl::OkStatus();
  }

  bool Healthz(std::string* json) {
    const char* status = device_lost ? "device lost"
                         : leaving   ? "draining"
                         : !settled  ? "loading"
                         : ready     ? "ready"
                         : any       ? "model failed"
                                     : "no model";
    absl::StrAppend(json, "{\"ready\":", is_ready() ? "true" : "false", ",\"status\":\"", status, "\"");
    {
      const absl::MutexLock lock(&health_mutex);
      if (!failed_models.empty()) {
        const std::string reason = absl::StrCat(kWaitsForFailed, ": ", failed_models);
        absl::StrAppend(json, ",\"reason\":", JsonString(reason));
      }
    }
    absl::StrAppend(json, ",\"models\":[");
    const char* comma = "";
    for (const ModelStatus& model : repository.List()) {
      absl::StrAppend(json, comma, "{\"name\":", JsonString(model.name), ",\"version\":", model.version,
                      ",\"state\":\"", StateName(model.state), "\"}");
      comma = ",";
    }
    absl::StrAppend(json, "]}\n");
    return is_ready();
  }

  bool is_ready() const { return ready && !device_lost && !leaving; }

  void AnnounceDrain() {
    leaving = true;
    for (HttpPort* port : {http_port.get(), metrics_port.get()}) {
      if (port != nullptr) port->AnnounceDrain();
    }
  }
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  absl::Status addresses = ParseHostPort("--listen", options.listen).status();
  if (!options.metrics_listen.empty()) {
    addresses.Update(ParseHostPort("--metrics_listen", options.metrics_listen).status());
  }
  if (!options.http_listen.empty()) addresses.Update(ParseHostPort("--http_listen", options.http_listen).status());
  if (!addresses.ok()) return addresses;
  const absl::Status sources = CheckSources({options.model_repository, options.models});
  if (!sources.ok()) return sources;
  auto parts = std::make_unique<Parts>(options);
  const absl::StatusOr<Credentials> credentials = MakeCredentials(options, parts->gate);
  if (!credentials.ok()) return credentials.status();
  if (!options.metrics_listen.empty() && !IsLoopback(options.metrics_listen) && !options.security.insecure_bind) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics_listen=", options.metrics_listen, " is not a loopback address: give --insecure_bind"));
  }
  std::string why_cpu;
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(options.backend, &why_cpu);
  if (!backend.ok()) return backend.status();
  const std::string gpu = !why_cpu.empty()                                ? "none found: " + why_cpu
                          : absl::StartsWith((*backend)->device(), "cpu") ? "not asked for"
                                                                          : "in use";
  parts->backend = *std::move(backend);
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Open(options.listen, LimitsOf(options));
  if (!listener.ok()) return listener.status();
  parts->listener = *std::move(listener);
  parts->rpcs.listener = parts->listener.get();
  parts->gate->log = &parts->call_log;
  Parts* raw = parts.get();
  parts->loader = std::make_unique<Loader>(
      raw->repository, *raw->backend, [raw](const auto& work) { return raw->queue.RunOnEngine(work); },
      options.repository_mode == RepositoryMode::kPoll ? absl::FromChrono(options.repository_poll)
                                                       : absl::InfiniteDuration());
  const absl::StatusOr<size_t> versions = parts->loader->Scan();
  if (!versions.ok()) return versions.status();

  if (absl::Status status = raw->OpenHttp(credentials->certificates); !status.ok()) return status;
  grpc::ServerBuilder builder;
  Configure(parts->memory.limit(), builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials->grpc);
  std::vector<const RawService*> services = {&parts->service, &parts->open_inference, &parts->health};
  builder.RegisterService(&parts->service);
  builder.RegisterService(&parts->open_inference);
  builder.RegisterService(&parts->health);
  if (options.reflection) {
    services.push_back(&parts->reflection);
    builder.RegisterService(&parts->reflection);
  }
  parts->call_threads =
      std::make_unique<CallThreads>(builder, *parts->gate, parts->call_log, raw->listener.get(), WhyNotServed);
  parts->grpc = builder.BuildAndStart();
  if (!parts->grpc) return absl::InternalError("gRPC does not start");
  for (const char* all : kWholeServer) parts->health.Set(all, false);
  parts->repository.SetListener([raw] { raw->UpdateHealth(); });
  parts->engine = std::make_unique<Engine>(raw->queue, raw->options, raw->backend.get(), [raw] { raw->LoseDevice(); });
  parts->engine->Start(raw->backend->PreparesBeside());  // a GPU is left to the engine's thread
  std::unique_ptr<Server> server(new Server(std::move(parts)));
  Log(LogLevel::kInfo, "serving",
      {{"port", raw->listener->port()},
       {"metrics_port", server->metrics_port()},
       {"http_port", server->http_port()},
       {"device", raw->backend->device()},
       {"gpu", gpu},
       {"versions", static_cast<uint64_t>(*versions)}});
  raw->UpdateHealth();
  raw->call_threads->Start(services);
  if (raw->http_port) raw->http_port->Start();
  if (raw->http_port) raw->watchdog.WatchHttp(raw->http_port->listener(), raw->http_port->counts());
  raw->watchdog.Start(*raw->listener, credentials->certificates);
  raw->listener->Start([grpc = std::shared_ptr(std::move(acceptor))](const Listener::Accepted& accepted) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = accepted.listener;
    connection.fd = accepted.descriptor;
    grpc->HandleNewConnection(&connection);
  });
  raw->loader->Start();
  return server;
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Drain(std::chrono::milliseconds(0)); }

int Server::port() const { return parts_->listener->port(); }
int Server::metrics_port() const { return parts_->metrics_port ? parts_->metrics_port->port() : 0; }
int Server::http_port() const { return parts_->http_port ? parts_->http_port->port() : 0; }

absl::Status Server::Reload() {
  if (parts_->options.repository_mode == RepositoryMode::kNone) {
    return absl::FailedPreconditionError("the repository is read at the start only (--repository_mode=none)");
  }
  const absl::StatusOr<size_t> versions = parts_->loader->Scan();
  if (!versions.ok()) return versions.status();
  Log(LogLevel::kInfo, "repository read again", {{"versions_to_load", static_cast<uint64_t>(*versions)}});
  return absl::OkStatus();
}

bool Server::calls_ended() const { return parts_->calls_ended; }

bool Server::WaitUntilLoaded(std::chrono::milliseconds timeout) {
  const Time end = Clock::now() + timeout;
  while (!parts_->repository.settled()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  parts_->UpdateHealth();  // the thread that loaded the last model may not have come to it
  return true;
}

void Server::AnnounceDrain() {
  Log(LogLevel::kInfo, "drain announced", {{"in_flight", parts_->handler.in_flight()}});
  parts_->AnnounceDrain();
  parts_->health.StopServing();
}

void Server::StopListening() {
  parts_->listener->Stop();
  if (parts_->http_port) parts_->http_port->StopListening();
}

void Server::Drain(std::chrono::milliseconds timeout) {
  if (std::exchange(parts_->drained, true)) return;
  parts_->AnnounceDrain();
  const std::function<Time()>& now = parts_->options.clock;
  const Time end = now() + timeout;
  Log(LogLevel::kInfo, "draining", {{"in_flight", parts_->handler.in_flight()}});
  parts_->health.Shutdown();
  parts_->repository.SetDraining();
  parts_->handler.Drain();
  StopListening();
  if (parts_->http_port) parts_->http_port->Drain();
  parts_->gate->Close();
  OpenRpcs& open = parts_->rpcs.open;
  const auto finish_written = [&] {
    open.FinishWritten([&](const std::string& peer) { return parts_->listener->Unconfirmed(peer) == 0; });
  };
  // Connections without a call close with GOAWAY. The last answers of some may not be sent yet.
  const auto sent = Clock::now() + kFlushAnswers;
  while (parts_->listener->Unconfirmed() > 0 && Clock::now() < sent) std::this_thread::sleep_for(kPoll);
  std::atomic<bool> left = false;
  std::thread leave([this, &left] {  // sends GOAWAY and waits for the calls
    parts_->grpc->Shutdown();
    left = true;
  });
  parts_->awaited.Close();
  open.DrainStreams();
  auto busy = [&] { return parts_->handler.in_flight() > 0 || open.streams() > 0; };
  auto answering = [&] { return parts_->http_port ? parts_->http_port->open_exchanges() : 0; };
  auto sending = [&] { return open.calls() > 0 || answering() > 0; };
  while ((busy() || sending()) && now() < end) {
    finish_written();
    std::this_thread::sleep_for(kPoll);
  }
  open.FinishAll();
  const int64_t cancelled = parts_->handler.in_flight();
  parts_->handler.CancelPreparing();
  parts_->queue.CancelAll();
  const Time stopped = now() + kStopWork;
  while (busy() && now() < stopped) std::this_thread::sleep_for(kPoll);
  const int64_t unsent = open.calls() + answering();
  const auto flushed = Clock::now() + kFlushAnswers;
  while ((!left || answering() > 0) && Clock::now() < flushed) std::this_thread::sleep_for(kPoll);
  grpc_server_cancel_all_calls(parts_->grpc->c_server());
  leave.join();
  parts_->handler.preparations().Stop();
  parts_->call_threads->Stop();
  parts_->calls_ended = true;
  parts_->watchdog.Stop();
  parts_->loader->Stop();
  parts_->queue.Close();
  parts_->engine->Join();
  parts_->handler.StopAnswers();
  parts_->http_port.reset();
  parts_->metrics_port.reset();
  parts_->call_log.TellHeldBack(Time::max());
  Log(LogLevel::kInfo, "stopped", {{"cancelled", cancelled}, {"unsent", unsent}});
}

}  // namespace edgewise::server
