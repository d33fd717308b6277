// One PredictStream: many requests in flight, answered in the order in which they finish.
#ifndef EDGEWISE_SERVER_RPC_STREAM_H_
#define EDGEWISE_SERVER_RPC_STREAM_H_

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>

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
  // Starts the read, the write or the finish that is due. `lock` guarded the change that made it due. `this` may be
  // deleted by the return unless a callback is running.
  void Advance(std::unique_lock<std::mutex> lock);

  RpcContext& context_;
  const Time deadline_;
  std::stop_source cancelled_;

  std::mutex mutex_;
  v1::PredictRequest request_;  // of the read in progress
  std::set<std::string> ids_;   // in flight
  uint32_t in_flight_ = 0;      // handed to the predictor, or waiting to be written
  std::deque<std::unique_ptr<v1::PredictStreamResponse>> ready_;
  std::unique_ptr<v1::PredictStreamResponse> writing_;
  bool reading_ = false;
  int starting_ = 0;           // threads that decided on an operation and have not started it yet
  bool half_closed_ = false;   // no further request is read
  bool disconnected_ = false;  // the client cancelled or disconnected
  bool draining_ = false;
  bool finished_ = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_STREAM_H_
