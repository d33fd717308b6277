// One Generate call on gRPC: sends the tokens that the engine gives as fast as the client reads.
#ifndef EDGEWISE_SERVER_WIRE_GENERATE_STREAM_H_
#define EDGEWISE_SERVER_WIRE_GENERATE_STREAM_H_

#include <atomic>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.pb.h"
#include "server/wire/one_message.h"

namespace edgewise::server {

// Holds at most options.unsent_tokens messages; beyond that the generation waits. Deletes itself when the call is over.
class GenerateReactor final : public OneMessageReactor, private TokenStream {
 public:
  using OneMessageReactor::OneMessageReactor;

 private:
  void Serve() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

  bool ready() const override { return unsent_.load(std::memory_order_relaxed) < context_.options.unsent_tokens; }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;
  void End(const absl::Status& status) override;

  // Starts the write or the finish that is due, and releases the lock that guarded the change which made it due. `this`
  // may be deleted by the return unless a callback is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  std::atomic<size_t> unsent_ = 0;  // messages in waiting_ and sending_

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> waiting_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer sending_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;      // a thread decided on a write and has not started it yet
  bool disconnected_ ABSL_GUARDED_BY(mutex_) = false;  // the client cancelled or disconnected
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;         // the engine has no more messages
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_GENERATE_STREAM_H_
