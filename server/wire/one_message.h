// A call with one message from the client, from its headers on: a message that does not come in time ends the call, and
// a long one is prepared on another thread.
#ifndef EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_
#define EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <stop_token>

#include "server/guard/awaited.h"
#include "server/wire/context.h"

namespace edgewise::server {

// Deletes itself when the call is over.
class OneMessageReactor : public RawReactor, private AwaitedCall {
 public:
  OneMessageReactor(RpcContext& context, RawCall& call, Rpc rpc)
      : RawReactor(call), context_(context), rpc_(rpc), principal_(context.PrincipalOfCall(*call_)) {}

  // Call once, after the construction. The end may come before the return.
  void Start();

 protected:
  // The message is there. On the thread of the call, or one for long messages (apart()). `this` lives until the return.
  virtual void Serve() = 0;
  // Sends and counts the status, after all that was written. Called once.
  virtual void End(const absl::Status& status) = 0;

  // The message, which is parsed into one on an arena. Ends the call where it cannot be; then false.
  bool Take(google::protobuf::Message& message);
  // Less what the call waited to be read: gRPC counts from there on.
  Time deadline() const { return deadline_; }
  bool apart() const { return arrival_ != Time(); }
  // When a message that is prepared apart arrived, since it may have waited. Time(): the message is short.
  Time arrival() const { return arrival_; }
  // A status that no request counts.
  void Refuse(const absl::Status& status);
  void OnCancel() override { cancelled_.request_stop(); }
  void OnDone() override { delete this; }

  RpcContext& context_;
  const Rpc rpc_;
  const Principal principal_;
  std::stop_source cancelled_;

 private:
  const std::shared_ptr<MemoryAccount> account_ = context_.memory.AccountOf(principal_.name);

 protected:
  MemoryHold message_memory_{*account_};  // of the call, then of the message; until the return of Serve, at most
  MemoryHold memory_{*account_};          // of the request and its answer

 private:
  void OnReadDone(bool ok) final;
  void GiveUp(const absl::Status& status) final { Refuse(status); }
  // The message is there, its length is checked.
  void ServeHere();
  void ServeApart();
  Time deadline_;
  grpc::ByteBuffer message_;
  Time arrival_;
  std::shared_ptr<void> open_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_ONE_MESSAGE_H_
