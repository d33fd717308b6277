#include "edgewise/client/client.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/channel.h"
#include "client/health.h"
#include "client/spread.h"
#include "edgewise/v1/inference.grpc.pb.h"

namespace edgewise {

struct Cancellation::Impl {
  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  std::set<grpc::ClientContext*> calls ABSL_GUARDED_BY(mutex);  // under way
};

Cancellation::Cancellation() : impl_(std::make_unique<Impl>()) {}
Cancellation::~Cancellation() = default;

void Cancellation::Cancel() {
  const absl::MutexLock lock(&impl_->mutex);
  impl_->cancelled = true;
  for (grpc::ClientContext* context : impl_->calls) context->TryCancel();
}

bool Cancellation::cancelled() const {
  const absl::MutexLock lock(&impl_->mutex);
  return impl_->cancelled;
}

// Puts a call under these cancellations, for as long as this lives. Null: nobody cancels.
class Client::Cancellable {
 public:
  Cancellable(std::initializer_list<Cancellation*> cancellations, grpc::ClientContext& context) : context_(context) {
    for (Cancellation* cancellation : cancellations) {
      if (cancellation == nullptr) continue;
      impls_.push_back(cancellation->impl_.get());
      const absl::MutexLock lock(&impls_.back()->mutex);
      impls_.back()->calls.insert(&context_);
      if (impls_.back()->cancelled) context_.TryCancel();
    }
  }
  ~Cancellable() {
    for (Cancellation::Impl* impl : impls_) {
      const absl::MutexLock lock(&impl->mutex);
      impl->calls.erase(&context_);
    }
  }

 private:
  std::vector<Cancellation::Impl*> impls_;
  grpc::ClientContext& context_;
};

struct Client::Impl {
  using Stub = v1::InferenceService::Stub;

  explicit Impl(ClientOptions the_options, internal::Channels the_channels)
      : options(std::move(the_options)),
        channels(std::move(the_channels)),
        channel(channels.ToAll()),
        stub(v1::InferenceService::NewStub(channel)) {}

  // gRPC aborts where one of its own threads drops the last reference to a channel, and a context has one.
  ~Impl() {
    const absl::MutexLock lock(&mutex, absl::Condition(
                                           +[](int64_t* calls) { return *calls == 0; }, &under_way));
  }

  const ClientOptions options;
  const internal::Channels channels;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<Stub> stub;
  absl::Mutex mutex;
  std::map<std::string, std::unique_ptr<Stub>> servers ABSL_GUARDED_BY(mutex);  // by target, once they were asked
  int64_t under_way ABSL_GUARDED_BY(mutex) = 0;                                 // calls of PredictAsync

  void Count(int64_t calls) {
    const absl::MutexLock lock(&mutex);
    under_way += calls;
  }

  absl::Duration Timeout(const CallOptions& call) const { return call.timeout.value_or(options.timeout); }

  // One unary call of the service.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, const CallOptions& call) {
    grpc::ClientContext context;
    channels.PrepareContext(Timeout(call), context);
    const Cancellable cancellable({call.cancellation}, context);
    Response response;
    grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return internal::ToAbslStatus(status);
    return response;
  }

  // `group`: ends the call too, or null.
  void PredictAsync(Stub& to, const v1::PredictRequest& request, PredictDone done, const CallOptions& call,
                    Cancellation* group = nullptr) {
    struct Counted {
      explicit Counted(Impl& the_client) : client(the_client) { client.Count(1); }
      ~Counted() { client.Count(-1); }
      Impl& client;
    };
    struct UnderWay : Counted {
      using Counted::Counted;
      PredictDone done;
      grpc::ClientContext context;
      v1::PredictResponse response;
      std::optional<Cancellable> cancellable;
    };
    auto under_way = std::make_shared<UnderWay>(*this);
    UnderWay& state = *under_way;
    state.done = std::move(done);
    channels.PrepareContext(Timeout(call), state.context);
    if (group != nullptr) state.context.set_wait_for_ready(false);
    state.cancellable.emplace(std::initializer_list<Cancellation*>{call.cancellation, group}, state.context);
    to.async()->Predict(&state.context, &request, &state.response,
                        [under_way = std::move(under_way)](const grpc::Status& status) {
                          under_way->cancellable.reset();
                          if (status.ok()) {
                            under_way->done(std::move(under_way->response));
                          } else {
                            under_way->done(internal::ToAbslStatus(status));
                          }
                        });
  }

  Stub& Server(const internal::ServerAddress& server) {
    const absl::MutexLock lock(&mutex);
    std::unique_ptr<Stub>& known = servers[server.target];
    if (known == nullptr) known = v1::InferenceService::NewStub(channels.ToServer(server));
    return *known;
  }
};

const char* HealthStateName(HealthState state) {
  constexpr const char* kNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
  const auto index = static_cast<size_t>(state);
  return kNames[index < std::size(kNames) ? index : 0];
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  absl::StatusOr<internal::Channels> channels = internal::Channels::Create(options);
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(options, *std::move(channels))));
}

absl::Status Client::WaitForConnected(absl::Duration timeout) {
  if (impl_->channel->WaitForConnected(absl::ToChronoTime(absl::Now() + std::min(timeout, absl::Hours(24 * 365))))) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError("no connection to " + impl_->options.address + " after " +
                                     absl::FormatDuration(timeout));
}

absl::StatusOr<v1::PredictResponse> Client::Predict(const v1::PredictRequest& request, const CallOptions& call) {
  return impl_->Call(&v1::InferenceService::Stub::Predict, request, call);
}

void Client::PredictAsync(const v1::PredictRequest& request, PredictDone done, const CallOptions& call) {
  impl_->PredictAsync(*impl_->stub, request, std::move(done), call);
}

absl::StatusOr<v1::PredictResponse> Client::PredictSpread(const v1::PredictRequest& request, const CallOptions& call) {
  const absl::Time end = absl::Now() + impl_->Timeout(call);
  const absl::StatusOr<std::vector<internal::ServerAddress>> servers = internal::FindServers(impl_->channels.address());
  if (!servers.ok()) return servers.status();
  Cancellation group;
  const auto ask = [&](size_t server, const v1::PredictRequest& part, PredictDone done) {
    CallOptions options = call;
    options.timeout = end - absl::Now();
    impl_->PredictAsync(impl_->Server((*servers)[server]), part, std::move(done), options, &group);
  };
  const auto names = [&](const std::string& model, int64_t version) -> absl::StatusOr<std::vector<std::string>> {
    CallOptions options = call;
    options.timeout = end - absl::Now();
    const absl::StatusOr<v1::ModelInfo> info = GetModel(model, version, options);
    if (!info.ok()) return info.status();
    return std::vector<std::string>(info->labels().begin(), info->labels().end());
  };
  return internal::PredictSpread(
      request, servers->size(), ask, [&] { group.Cancel(); }, names);
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateResponse&)>& on_token,
                              const CallOptions& call) {
  grpc::ClientContext context;
  impl_->channels.PrepareContext(call.timeout.value_or(absl::InfiniteDuration()), context);
  const Cancellable cancellable({call.cancellation}, context);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = impl_->stub->Generate(&context, request);
  bool wanted = true;
  v1::GenerateResponse message;
  while (wanted && reader->Read(&message)) wanted = on_token(message);
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  return wanted ? internal::ToAbslStatus(status) : absl::OkStatus();
}

absl::StatusOr<v1::ListModelsResponse> Client::ListModels(const CallOptions& call) {
  return impl_->Call(&v1::InferenceService::Stub::ListModels, v1::ListModelsRequest(), call);
}

absl::StatusOr<v1::ModelInfo> Client::GetModel(const std::string& model, int64_t version, const CallOptions& call) {
  v1::GetModelRequest request;
  request.set_model(model);
  request.set_version(version);
  absl::StatusOr<v1::GetModelResponse> response = impl_->Call(&v1::InferenceService::Stub::GetModel, request, call);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_model());
}

absl::StatusOr<HealthState> Client::Health(const std::string& service, const CallOptions& call) {
  grpc::ClientContext context;
  impl_->channels.PrepareContext(impl_->Timeout(call), context);
  HealthState state = HealthState::kUnknown;
  grpc::Status status = internal::CheckHealth(impl_->channel, context, service, state);
  if (!status.ok()) return internal::ToAbslStatus(status);
  return state;
}

absl::Status Client::WatchHealth(const std::string& service, const std::function<bool(HealthState)>& on_state,
                                 const CallOptions& call) {
  grpc::ClientContext context;
  impl_->channels.PrepareContext(call.timeout.value_or(absl::InfiniteDuration()), context);
  return internal::ToAbslStatus(internal::WatchHealth(impl_->channel, context, service, on_state));
}

}  // namespace edgewise
