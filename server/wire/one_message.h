// A call with one message from the client, from its headers on: a message that does not come in time ends the call, and
// a long one is prepared on another thread.
#ifndef EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_
#define EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <stop_token>

#include "server/guard/awaited.h"
#include "server/wire/context.h"

namespace edgewise::server {

class OneMessageReactor : public RawReactor, private AwaitedCall {
 public:
  // `infers`: Call::infers.
  OneMessageReactor(RpcContext& context, RawCall& call, Rpc rpc, std::optional<Rpc> infers = std::nullopt)
      : RawReactor(call), context_(context), apart_(rpc == Rpc::kListModels || rpc == Rpc::kGetModel) {
    record().rpc = rpc;
    record().infers = infers;
  }

 protected:
  // The message is there. On the thread of the call, or one for long messages. `this` lives until the return.
  virtual void Serve() = 0;
  // Records and sends the status, after all that was written. Called once.
  virtual void End(const absl::Status& status) = 0;

  // The message, which is parsed into one on an arena. Ends the call where it cannot be; then false.
  bool Take(google::protobuf::Message& message);
  // For RequestHandler::Start, all but where the answer goes. `rpc`: kPredict or kGenerate.
  Ticket NewTicket(Rpc rpc = Rpc::kPredict);
  // Ends the call before its message was served.
  void Refuse(const absl::Status& status);
  void OnCancel() override { cancelled_.request_stop(); }

  RpcContext& context_;
  std::stop_source cancelled_;
  bool apart_;  // a short message is served on a thread for long work too: its answer may be long

 private:
  const std::shared_ptr<MemoryAccount> account_ = context_.memory.AccountOf(record().principal.name);

 protected:
  MemoryHold message_memory_{*account_};  // of the call, then of the message; until the return of Serve, at most
  MemoryHold memory_{*account_};          // of the request and its answer

 private:
  void OnBegun() final;
  void OnReadDone(bool ok) final;
  void GiveUp(const absl::Status& status) final { Refuse(status); }
  // The message is there, its length is checked, and it is long or its answer may be.
  void ServeApart();

  Time deadline_;  // less what the call waited to be read: gRPC counts from there on
  grpc::ByteBuffer message_;
  Time arrival_;  // of a message that is prepared apart, since it may have waited; Time(): the message is short
  std::shared_ptr<void> open_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_
