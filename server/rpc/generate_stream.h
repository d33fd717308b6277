// One Generate call on gRPC: sends the tokens that the engine gives as fast as the client reads.
#ifndef EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
#define EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <stop_token>

#include "edgewise/v1/inference.grpc.pb.h"
#include "server/rpc/context.h"

namespace edgewise::server {

// Holds at most options.unsent_tokens messages; beyond that the generation waits. Deletes itself when the call is over.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse>, private TokenStream {
 public:
  GenerateReactor(RpcContext& context, grpc::CallbackServerContext* call, const v1::GenerateRequest& request);

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool ready() const override { return unsent_.load(std::memory_order_relaxed) < context_.options.unsent_tokens; }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;
  void End(const absl::Status& status) override;

  // Starts the write or the finish that is due. `this` may be deleted by the return unless a callback is running.
  void Advance(std::unique_lock<std::mutex> lock);

  RpcContext& context_;
  const std::shared_ptr<void> open_;
  std::stop_source cancelled_;
  std::atomic<size_t> unsent_ = 0;  // messages in waiting_ and writing_

  std::mutex mutex_;
  std::deque<std::unique_ptr<v1::GenerateResponse>> waiting_;
  std::unique_ptr<v1::GenerateResponse> writing_;
  bool starting_ = false;      // a thread is between deciding on a write and having started it
  bool disconnected_ = false;  // the client cancelled or disconnected
  bool ended_ = false;         // the engine has no more messages
  bool finished_ = false;
  absl::Status status_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
