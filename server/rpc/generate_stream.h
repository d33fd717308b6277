// One Generate call on gRPC: tokens in from the engine, messages out as fast as the client reads.
#ifndef EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
#define EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_

#include <atomic>
#include <deque>
#include <memory>
#include <stop_token>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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

  // Starts the operation that is due: a write, or the finish. Takes over the lock that guarded the change which made it
  // due. When it returns, `this` may be gone unless a reaction is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  InferenceServiceImpl& service_;
  const size_t limit_;
  const bool counted_;  // began before the drain, which waits for it
  std::stop_source cancelled_;
  std::atomic<size_t> unsent_ = 0;  // size of waiting_, and what is being written

  absl::Mutex mutex_;
  std::deque<std::unique_ptr<v1::GenerateResponse>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<v1::GenerateResponse> writing_ ABSL_GUARDED_BY(mutex_);
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is between deciding on a write and having started it
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // the client has gone
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;     // the engine has no more
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_GENERATE_STREAM_H_
