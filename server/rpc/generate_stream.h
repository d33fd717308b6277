// One Generate call on gRPC: sends the tokens that the engine gives as fast as the client reads.
#ifndef EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
#define EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_

#include <atomic>
#include <deque>
#include <memory>
#include <stop_token>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.grpc.pb.h"
#include "server/rpc/context.h"

namespace edgewise::server {

// Holds at most options.unsent_tokens messages; beyond that the generation waits. Deletes itself when the call is over.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse>, private TokenStream {
 public:
  explicit GenerateReactor(RpcContext& context) : context_(context), open_(context.HoldCall()) {}

  // The answer may come before the return.
  void Start(const v1::GenerateRequest& message, const grpc::CallbackServerContext& call);

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool ready() const override { return unsent_.load(std::memory_order_relaxed) < context_.options.unsent_tokens; }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;
  void End(const absl::Status& status);

  // Starts the write or the finish that is due, and releases the lock that guarded the change which made it due. `this`
  // may be deleted by the return unless a callback is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  RpcContext& context_;
  const std::shared_ptr<void> open_;
  std::stop_source cancelled_;
  std::atomic<size_t> unsent_ = 0;  // messages in waiting_ and writing_

  absl::Mutex mutex_;
  std::deque<std::unique_ptr<v1::GenerateResponse>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<v1::GenerateResponse> writing_ ABSL_GUARDED_BY(mutex_);
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;      // a thread decided on a write and has not started it yet
  bool disconnected_ ABSL_GUARDED_BY(mutex_) = false;  // the client cancelled or disconnected
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;         // the engine has no more messages
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
