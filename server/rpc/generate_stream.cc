#include "server/rpc/generate_stream.h"

#include <utility>

#include "server/rpc/grpc_status.h"

namespace edgewise::server {

GenerateReactor::GenerateReactor(RpcContext& context, grpc::CallbackServerContext* call,
                                 const v1::GenerateRequest& request)
    : context_(context), open_(context.HoldCall()) {
  context_.generator.Generate(request, ToSteady(call->deadline(), context_.calls.now()), cancelled_.get_token(), this);
}

void GenerateReactor::Advance(std::unique_lock<std::mutex> lock) {
  if (disconnected_ || (ended_ && !status_.ok())) {  // nobody reads the rest, or it would only delay the error
    unsent_.fetch_sub(waiting_.size());
    waiting_.clear();
  }
  if (writing_ || finished_) return;
  if (!waiting_.empty()) {
    writing_ = std::move(waiting_.front());
    waiting_.pop_front();
    const v1::GenerateResponse* message = writing_.get();
    starting_ = true;
    lock.unlock();
    StartWrite(message);
    lock.lock();
    starting_ = false;
    if (writing_) return;  // OnWriteDone goes on
    return Advance(std::move(lock));
  }
  if (!ended_) return;
  finished_ = true;
  const absl::Status status = status_;
  lock.unlock();
  context_.metrics.CountRpc(Rpc::kGenerate, status.code());
  Finish(ToGrpc(status));
}

void GenerateReactor::Send(std::unique_ptr<v1::GenerateResponse> message) {
  std::unique_lock<std::mutex> lock(mutex_);
  unsent_.fetch_add(1);
  waiting_.push_back(std::move(message));
  if (!starting_) Advance(std::move(lock));
}

void GenerateReactor::End(const absl::Status& status) {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_ = true;
  status_ = status;
  if (!starting_) Advance(std::move(lock));
}

void GenerateReactor::OnWriteDone(bool ok) {
  if (!ok) cancelled_.request_stop();
  std::unique_lock<std::mutex> lock(mutex_);
  writing_.reset();
  const bool was_full = unsent_.fetch_sub(1) >= context_.options.unsent_tokens;
  if (!ok) disconnected_ = true;
  if (was_full || !ok) context_.calls.Wake();
  if (!starting_) Advance(std::move(lock));
}

void GenerateReactor::OnCancel() {
  cancelled_.request_stop();
  context_.calls.Wake();
  std::unique_lock<std::mutex> lock(mutex_);
  disconnected_ = true;
  if (!starting_) Advance(std::move(lock));
}

void GenerateReactor::OnDone() { delete this; }

}  // namespace edgewise::server
