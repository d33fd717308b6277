// One PredictStream: many requests in flight, answered in the order in which they finish.
#ifndef EDGEWISE_SERVER_RPC_STREAM_H_
#define EDGEWISE_SERVER_RPC_STREAM_H_

#include <deque>
#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.grpc.pb.h"
#include "server/rpc/context.h"

namespace edgewise::server {

// At most options.stream_in_flight requests are read but not yet answered. Beyond that the stream reads no further, so
// a client that does not read its answers is not read from. Deletes itself when the call is over.
class StreamReactor final : public grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse> {
 public:
  StreamReactor(RpcContext& context, grpc::CallbackServerContext* call);

  // Stops reading; ends with UNAVAILABLE once all is answered.
  void Drain();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Answer(std::unique_ptr<v1::PredictStreamResponse> response, const absl::Status& status);
  // Starts the read, the write or the finish that is due, and releases the lock that guarded the change which made it
  // due. `this` may be deleted by the return unless a callback is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  RpcContext& context_;
  const Time deadline_;
  const Principal principal_;
  std::stop_source cancelled_;

  v1::PredictRequest message_;  // of the read in progress; belongs to the thread that set reading_

  absl::Mutex mutex_;
  std::set<std::string> ids_ ABSL_GUARDED_BY(mutex_);  // request_id of the requests in flight
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;     // requests that are read and not yet answered
  std::deque<std::unique_ptr<v1::PredictStreamResponse>> ready_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<v1::PredictStreamResponse> writing_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that decided on an operation and have not started it yet
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;   // no further request is read
  bool disconnected_ ABSL_GUARDED_BY(mutex_) = false;  // the client cancelled or disconnected
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_STREAM_H_
