// One PredictStream: many requests in flight, answers in the order they finish.
#ifndef EDGEWISE_SERVER_RPC_STREAM_H_
#define EDGEWISE_SERVER_RPC_STREAM_H_

#include <deque>
#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/service.h"

namespace edgewise::server {

// At most options.stream_in_flight requests are read and not yet written back; beyond that reads wait, so a client that
// does not read is not read from. Deletes itself when the call is over.
class StreamReactor final : public grpc::ServerBidiReactor<v1::PredictRequest, v1::PredictStreamResponse> {
 public:
  StreamReactor(InferenceServiceImpl& service, grpc::CallbackServerContext* context);

  // Stops reading; ends with UNAVAILABLE once all is answered.
  void Drain();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Answer(const std::string& request_id, std::unique_ptr<v1::PredictStreamResponse> response,
              const absl::Status& status);
  // Starts the operations that are due: a read, a write, the finish. Takes over the lock that guarded the change which
  // made them due. When it returns, `this` may be gone unless a reaction is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  InferenceServiceImpl& service_;
  const Time deadline_;
  std::stop_source cancelled_;

  v1::PredictRequest request_;  // of the read in progress; belongs to the thread that set reading_

  absl::Mutex mutex_;
  std::set<std::string> ids_ ABSL_GUARDED_BY(mutex_);  // in flight
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;     // handed to the predictor, or waiting to be written
  std::deque<std::unique_ptr<v1::PredictStreamResponse>> ready_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<v1::PredictStreamResponse> writing_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;          // threads between deciding on an operation and having started it
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more, or is not read any more
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;       // the client has gone
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_STREAM_H_
