#include "edgewise/client/client.h"

#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/channel.h"
#include "client/health.h"
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

// Puts a call under the cancellation of its options, if there is one, for as long as this lives.
class Client::Cancellable {
 public:
  Cancellable(const CallOptions& call, grpc::ClientContext& context)
      : impl_(call.cancellation == nullptr ? nullptr : call.cancellation->impl_.get()), context_(context) {
    if (impl_ == nullptr) return;
    const absl::MutexLock lock(&impl_->mutex);
    impl_->calls.insert(&context_);
    if (impl_->cancelled) context_.TryCancel();
  }
  ~Cancellable() {
    if (impl_ == nullptr) return;
    const absl::MutexLock lock(&impl_->mutex);
    impl_->calls.erase(&context_);
  }

 private:
  Cancellation::Impl* const impl_;
  grpc::ClientContext& context_;
};

struct Client::Impl {
  ClientOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> stub;

  // One unary call of the service.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::InferenceService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                   Response*),
                                const Request& request, const CallOptions& call) {
    grpc::ClientContext context;
    internal::PrepareContext(options, call.timeout.value_or(options.timeout), context);
    const Cancellable cancellable(call, context);
    Response response;
    grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return internal::ToAbslStatus(status);
    return response;
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
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = internal::CreateChannel(options);
  if (!channel.ok()) return channel.status();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->channel = *std::move(channel);
  impl->stub = v1::InferenceService::NewStub(impl->channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
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
  struct UnderWay {
    PredictDone done;
    grpc::ClientContext context;
    v1::PredictResponse response;
    std::optional<Cancellable> cancellable;
  };
  auto under_way = std::make_shared<UnderWay>();
  UnderWay& state = *under_way;
  state.done = std::move(done);
  internal::PrepareContext(impl_->options, call.timeout.value_or(impl_->options.timeout), state.context);
  state.cancellable.emplace(call, state.context);
  impl_->stub->async()->Predict(&state.context, &request, &state.response,
                                [under_way = std::move(under_way)](const grpc::Status& status) {
                                  under_way->cancellable.reset();
                                  if (status.ok()) {
                                    under_way->done(std::move(under_way->response));
                                  } else {
                                    under_way->done(internal::ToAbslStatus(status));
                                  }
                                });
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateResponse&)>& on_token,
                              const CallOptions& call) {
  grpc::ClientContext context;
  internal::PrepareContext(impl_->options, call.timeout.value_or(absl::InfiniteDuration()), context);
  const Cancellable cancellable(call, context);
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
  internal::PrepareContext(impl_->options, call.timeout.value_or(impl_->options.timeout), context);
  HealthState state = HealthState::kUnknown;
  grpc::Status status = internal::CheckHealth(impl_->channel, context, service, state);
  if (!status.ok()) return internal::ToAbslStatus(status);
  return state;
}

absl::Status Client::WatchHealth(const std::string& service, const std::function<bool(HealthState)>& on_state,
                                 const CallOptions& call) {
  grpc::ClientContext context;
  internal::PrepareContext(impl_->options, call.timeout.value_or(absl::InfiniteDuration()), context);
  return internal::ToAbslStatus(internal::WatchHealth(impl_->channel, context, service, on_state));
}

}  // namespace edgewise
