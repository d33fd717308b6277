// Calls of gRPC with one message each way.
#ifndef EDGEWISE_SERVER_WIRE_UNARY_H_
#define EDGEWISE_SERVER_WIRE_UNARY_H_

#include "server/wire/grpc_status.h"
#include "server/wire/message.h"
#include "server/wire/one_message.h"

namespace edgewise::server {

// A call with one answer.
class UnaryReactor : public OneMessageReactor {
 public:
  using OneMessageReactor::OneMessageReactor;

 protected:
  // Sends the answer; its memory is held until it is sent.
  void Answer(const google::protobuf::Message& message) {
    answer_ = Serialize(message);
    const absl::Status status = memory_.Resize(answer_.Length());
    if (!status.ok()) return End(status);
    Record(absl::OkStatus());
    if (context_.handler.draining()) return StartWrite(&answer_);
    StartWriteAndFinish(&answer_, grpc::Status::OK);
  }
  // Ticket::alone. Once for each ticket, before the request starts.
  bool IsAlone(const Ticket& ticket) {
    return !ticket.apart && context_.IsAlone(std::hash<std::string>()(record().peer));
  }
  void OnWriteDone(bool) override { context_.Finish(*this, *call_, absl::OkStatus()); }

  void End(const absl::Status& status) override {
    memory_.Shrink(0);
    Record(status);
    Finish(ToGrpc(status));
  }

 private:
  grpc::ByteBuffer answer_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_UNARY_H_
