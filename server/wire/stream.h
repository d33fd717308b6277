// One PredictStream: many requests in flight, answered in the order in which they finish.
#ifndef EDGEWISE_SERVER_WIRE_STREAM_H_
#define EDGEWISE_SERVER_WIRE_STREAM_H_

#include <deque>
#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "edgewise/v1/inference.pb.h"
#include "server/wire/one_message.h"

namespace edgewise::server {

// At most options.stream_in_flight requests are read but not yet answered, and at most options.unsent_bytes of answers
// wait to be sent before the stream reads no further: a client that does not read its answers is not read from. A
// long message is prepared on another thread, and the next one read after that.
class StreamReactor final : public RawReactor, public Drainable, private AwaitedCall {
 public:
  StreamReactor(RpcContext& context, RawCall& call);
  ~StreamReactor() override { context_.open.RemoveStream(this); }

  // Ends with UNAVAILABLE.
  void Drain() override;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void GiveUp(const absl::Status& status) override;

  // An answer from the start of its request until it is sent.
  struct Answer {
    explicit Answer(MemoryAccount& account) : memory(account) {}

    Call call;
    v1::PredictStreamResponse response;
    MemoryHold memory;
    grpc::ByteBuffer bytes;  // of the response, when it is finished
  };
  using AnswerPtr = std::unique_ptr<Answer>;

  // Answers the message that has come. `status`: it is refused instead. `arrival`: of a message that is prepared apart,
  // on a thread for such; else Time().
  void ServeHere(absl::Status status, Time arrival);
  AnswerPtr NewAnswer(Time arrival);
  void ServeApart();
  void Serve(const v1::PredictRequest& message, Time arrival);
  // `status`: of the request.
  void Send(AnswerPtr answer, const absl::Status& status);
  // No message is read after this, and the call ends with the status once all are answered.
  void EndWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read();
  // Starts the read, the write or the finish that is due, and releases the lock that guarded the change which made it
  // due. `this` may be deleted by the return unless a callback is running.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  RpcContext& context_;
  const Time deadline_;
  std::stop_source cancelled_;

  const std::shared_ptr<MemoryAccount> account_ = context_.memory.AccountOf(record().principal.name);
  const std::shared_ptr<AnswerLine> line_ = context_.handler.NewLine(record().principal);
  // State of the read in progress. It belongs to the thread that set reading_.
  bool began_ = false;  // a message has come
  grpc::ByteBuffer message_;
  MemoryHold message_memory_{*account_};

  absl::Mutex mutex_;
  MemoryHold memory_ ABSL_GUARDED_BY(mutex_){*account_};  // of the call, until it is to end
  std::set<std::string> ids_ ABSL_GUARDED_BY(mutex_);     // request_id of the requests in flight
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;        // requests that are read and not yet answered
  std::deque<AnswerPtr> ready_ ABSL_GUARDED_BY(mutex_);
  uint64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of ready_ and writing_
  AnswerPtr writing_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that decided on an operation and have not started it yet
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;   // no further request is read
  bool disconnected_ ABSL_GUARDED_BY(mutex_) = false;  // the client cancelled or disconnected
  absl::Status end_ ABSL_GUARDED_BY(mutex_);           // of the call, where the server ends it
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_STREAM_H_
