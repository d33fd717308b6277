// One Generate call on gRPC: tokens in from the engine, messages out as fast as the client reads.
#ifndef EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
#define EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <stop_token>

#include "edgewise/v1/inference.grpc.pb.h"
#include "server/calls/generator.h"
#include "server/rpc/service.h"

namespace edgewise::server {

// Holds at most options.unsent_tokens messages: beyond it the generation waits. Deletes itself when the call is over.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse>, private TokenStream {
 public:
  GenerateReactor(InferenceServiceImpl& service, grpc::CallbackServerContext* context,
                  const v1::GenerateRequest& request);

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool ready() const override { return unsent_.load(std::memory_order_relaxed) < limit_; }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;
  void End(const absl::Status& status) override;

  // Starts what is due: a write, or the finish. When it returns, `this` may be gone unless a reaction is running.
  void Advance(std::unique_lock<std::mutex> lock);

  InferenceServiceImpl& service_;
  const size_t limit_;
  const bool counted_;  // began before the drain, which waits for it
  std::stop_source cancelled_;
  std::atomic<size_t> unsent_ = 0;  // size of waiting_, and what is being written

  std::mutex mutex_;
  std::deque<std::unique_ptr<v1::GenerateResponse>> waiting_;
  std::unique_ptr<v1::GenerateResponse> writing_;
  bool starting_ = false;  // a thread is between deciding on a write and having started it
  bool broken_ = false;    // the client has gone
  bool ended_ = false;     // the engine has no more
  bool finished_ = false;
  absl::Status status_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
