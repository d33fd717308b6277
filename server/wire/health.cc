#include "server/wire/health.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "health/v1/health.pb.h"
#include "server/base/status_details.h"
#include "server/wire/message.h"

namespace edgewise::server {
namespace {

using grpc::health::v1::HealthCheckResponse;

constexpr size_t kMostBytes = 4096;  // of a request: a name

grpc::ByteBuffer Answer(int status) {
  HealthCheckResponse response;
  response.set_status(static_cast<HealthCheckResponse::ServingStatus>(status));
  return Serialize(response);
}

}  // namespace

// Reads the request. It holds no memory of the ledger: health is asked for most when there is none.
class HealthService::Call : public RawReactor, private AwaitedCall {
 public:
  Call(HealthService& service, RawCall& call) : RawReactor(call), service_(service) { record().quiet = true; }

  void OnBegun() override {
    RpcContext& context = service_.context_;
    const absl::Status status = context.awaited.Add(*this, context.options.message_timeout, nullptr);
    status.ok() ? StartRead(&message_) : GiveUp(status);
  }

 protected:
  void GiveUp(const absl::Status& status) final {
    Record(status);
    Finish(ToGrpc(status));
  }

  // The request is there. Called once, or GiveUp instead.
  virtual void Serve(const std::string& name) = 0;

  HealthService& service_;
  grpc::ByteBuffer answer_;

 private:
  void OnReadDone(bool ok) final {
    if (!service_.context_.awaited.Remove(*this)) return;
    grpc::health::v1::HealthCheckRequest request;
    if (!ok) return GiveUp(absl::InvalidArgumentError("the call ended before its message was whole"));
    if (message_.Length() > kMostBytes) {
      return GiveUp(absl::InvalidArgumentError(
          absl::StrCat("the message has ", message_.Length(), " bytes; at most ", kMostBytes, " are allowed")));
    }
    grpc::ProtoBufferReader reader(&message_);
    if (!request.ParseFromZeroCopyStream(&reader)) {
      return GiveUp(absl::InvalidArgumentError("the message is no HealthCheckRequest"));
    }
    Serve(request.service());
  }

  grpc::ByteBuffer message_;
};

class HealthService::Check final : public Call {
 public:
  using Call::Call;

 private:
  void Serve(const std::string& name) override {
    int status = 0;
    {
      const absl::MutexLock lock(&service_.mutex_);
      status = service_.StatusOf(name);
    }
    if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
      return GiveUp(absl::NotFoundError("there is no service or model of this name"));
    }
    answer_ = Answer(status);
    StartWriteAndFinish(&answer_, grpc::Status::OK);
  }
};

class HealthService::Watch final : public Call {
 public:
  using Call::Call;

  // A status has changed. Under the service's mutex.
  void Look() {
    service_.mutex_.AssertHeld();
    Advance();
  }

 private:
  // Sends what is due: a status that the client does not know, or the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_.mutex_) {
    if (!watches_ || writing_) return;
    const int status = service_.StatusOf(name_);
    if (!gone_ && status != sent_) {
      sent_ = status;
      writing_ = true;
      answer_ = Answer(status);
      return StartWrite(&answer_);
    }
    if (!gone_ && !service_.shut_down_) return;
    watches_ = false;
    service_.watches_.erase(this);
    service_.context_.Finish(*this, *call_,
                             gone_ ? absl::CancelledError("the client cancelled the call") : ShuttingDown());
  }

  void Serve(const std::string& name) override {
    const absl::MutexLock lock(&service_.mutex_);
    name_ = name;
    watches_ = true;
    service_.watches_.insert(this);
    Advance();
  }
  void OnWriteDone(bool ok) override {
    const absl::MutexLock lock(&service_.mutex_);
    writing_ = false;
    gone_ |= !ok;
    Advance();
  }
  void OnCancel() override {
    const absl::MutexLock lock(&service_.mutex_);
    gone_ = true;
    Advance();
  }

  // All of them guarded by the service's mutex.
  std::string name_;
  int sent_ = -1;         // status; -1: none
  bool watches_ = false;  // the request has come and the call has not finished
  bool writing_ = false;
  bool gone_ = false;  // the client
};

HealthService::HealthService(RpcContext& context) : context_(context) {
  Add("/grpc.health.v1.Health/Check", [this](RawCall& call) { return std::make_unique<Check>(*this, call); });
  Add("/grpc.health.v1.Health/Watch", [this](RawCall& call) { return std::make_unique<Watch>(*this, call); });
}

int HealthService::StatusOf(const std::string& service) const {
  const auto found = serves_.find(service);
  if (found == serves_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second && serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Set(const std::string& service, bool serves) {
  const absl::MutexLock lock(&mutex_);
  serves_[service] = serves;
  LookAll();
}

void HealthService::StopServing() {
  const absl::MutexLock lock(&mutex_);
  serving_ = false;
  LookAll();
}

void HealthService::Shutdown() {
  const absl::MutexLock lock(&mutex_);
  serving_ = false;
  shut_down_ = true;
  LookAll();
}

void HealthService::LookAll() {
  for (auto next = watches_.begin(); next != watches_.end();) (*next++)->Look();
}

}  // namespace edgewise::server
