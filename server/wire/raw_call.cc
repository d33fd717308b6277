#include "server/wire/raw_call.h"

#include <grpcpp/impl/rpc_service_method.h>

#include <utility>

#include "server/guard/principal.h"
#include "server/wire/call_thread.h"
#include "server/wire/grpc_status.h"

// Defined in gRPC's core, but in no public header: the flags of the message that was read last.
uint32_t grpc_call_test_only_get_message_flags(grpc_call* call);

namespace edgewise::server {
namespace {

// Two of these flags: the message came compressed, and was not or was decompressed. With an encoding that is not served
// "decompressed" means copied.
constexpr uint32_t kCompressed = 0x80000000u | 0x40000000u;

// Calls of one method, on one queue, that are requested and have not come yet. Further ones wait until one of these has
// begun.
constexpr int kWaitingCalls = 64;

// A call that no method gets.
class Refused final : public RawReactor {
 public:
  Refused(RawCall& call, const absl::Status& status) : RawReactor(call) {
    Record(status);
    Finish(ToGrpc(status));
  }
};

}  // namespace

RawReactor::RawReactor(RawCall& call) : call_(&call.context_), raw_(call) {
  record_.name = call.method_.path;
  record_.peer = call_->peer();
  record_.principal = std::move(call.principal_);
  record_.arrival = call.log_.now();
}

void RawReactor::StartRead(grpc::ByteBuffer* message) {
  raw_.running_.fetch_add(1);
  raw_.stream_.Read(message, &raw_.read_);
}

absl::Status RawReactor::CheckRead() const {
  if ((grpc_call_test_only_get_message_flags(call_->c_call()) & kCompressed) == 0) return absl::OkStatus();
  return absl::InternalError(
      "the message is flagged as compressed, but the call has no grpc-encoding; send it as it is");
}

void RawReactor::StartWrite(const grpc::ByteBuffer* message) {
  raw_.running_.fetch_add(1);
  raw_.stream_.Write(*message, &raw_.written_);
}

void RawReactor::StartWriteAndFinish(const grpc::ByteBuffer* message, const grpc::Status& status) {
  raw_.stream_.WriteAndFinish(*message, grpc::WriteOptions(), status, &raw_.finished_);
}

void RawReactor::Finish(const grpc::Status& status) { raw_.stream_.Finish(status, &raw_.finished_); }

void RawReactor::Record(const absl::Status& status) { raw_.log_.End(record_, status); }

void RawReactor::Hold() { raw_.running_.fetch_add(1); }

void RawReactor::Release() { raw_.Complete(); }

void RawService::Add(const char* path, std::function<std::unique_ptr<RawReactor>(RawCall& call)> make) {
  AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  const auto request = [this, index = static_cast<int>(methods_.size())](RawCall& call) {
    RequestAsyncBidiStreaming(index, &call.context_, &call.stream_, &call.queue_, &call.queue_, &call.begun_);
  };
  methods_.push_back(std::make_unique<RawMethod>(RawMethod{path, request, std::move(make)}));
}

RawCall::RawCall(const RawMethod& method, grpc::ServerCompletionQueue& queue, const Gate& gate, CallLog& log,
                 Listener* listener)
    : method_(method), queue_(queue), gate_(gate), log_(log), listener_(listener) {
  context_.AsyncNotifyWhenDone(&ended_);
  method.request(*this);
}

std::unique_ptr<RawReactor> RawCall::MakeReactor() {
  absl::StatusOr<Principal> principal = PrincipalOf(context_, gate_);
  if (principal.ok()) {
    principal_ = *std::move(principal);
    return method_.make(*this);
  }
  principal_.name = WithoutPort(context_.peer());
  return std::make_unique<Refused>(*this, principal.status());
}

RawCall::~RawCall() {
  if (connection_ != 0) listener_->table().End(connection_);
}

void RawCall::OnEvent(Operation operation, bool ok) {
  switch (operation) {
    case Operation::kBegin:
      if (!ok) return delete this;  // the server shuts down
      gate_.counts.begun.fetch_add(1, std::memory_order_relaxed);
      new RawCall(method_, queue_, gate_, log_, listener_);
      reactor_ = MakeReactor();
      return reactor_->OnBegun();
    case Operation::kRead:
      if (ok && connection_ == 0 && listener_ != nullptr) connection_ = listener_->Begin(context_.peer());
      reactor_->OnReadDone(ok);
      break;
    case Operation::kWrite:
      reactor_->OnWriteDone(ok);
      break;
    case Operation::kFinish:
      break;
    case Operation::kEnd:
      if (context_.IsCancelled()) reactor_->OnCancel();
      break;
  }
  Complete();
}

void RawCall::Complete() {
  if (running_.fetch_sub(1) == 1) delete this;
}

CallThreads::CallThreads(grpc::ServerBuilder& builder, const Gate& gate, CallLog& log, Listener* listener,
                         WhyNot why_not)
    : gate_(gate), log_(log), listener_(listener) {
  unimplemented_.request = [this](RawCall& call) {
    others_.RequestCall(&call.context_, &call.stream_, &call.queue_, &call.queue_, &call.begun_);
  };
  unimplemented_.make = [why_not](RawCall& call) {
    const char* const usual = "the server has no such method";
    const std::string why = why_not != nullptr ? why_not(call.context_.method()) : usual;
    return std::make_unique<Refused>(call, absl::UnimplementedError(why));
  };
  builder.RegisterAsyncGenericService(&others_);
  for (int thread = 0; thread < CallThreadCount(); ++thread) queues_.push_back(builder.AddCompletionQueue());
}

void CallThreads::Start(const std::vector<const RawService*>& services) {
  for (const auto& queue : queues_) {
    const auto accept = [&](const RawMethod& method) {
      for (int waiting = 0; waiting < kWaitingCalls; ++waiting) new RawCall(method, *queue, gate_, log_, listener_);
    };
    accept(unimplemented_);
    for (const RawService* service : services) {
      for (const auto& method : service->methods()) accept(*method);
    }
    threads_.emplace_back([&queue = *queue] {
      BecomeCallThread("calls");
      void* event = nullptr;
      for (bool ok = false; queue.Next(&event, &ok);) {
        const auto& done = *static_cast<RawCall::Event*>(event);
        done.call.OnEvent(done.operation, ok);
      }
    });
  }
}

void CallThreads::Stop() {
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  queues_.clear();
}

}  // namespace edgewise::server
