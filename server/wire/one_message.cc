#include "server/wire/one_message.h"

#include "server/base/status_details.h"
#include "server/wire/grpc_status.h"
#include "server/wire/message.h"

namespace edgewise::server {

void OneMessageReactor::OnBegun() {
  const Time now = record().arrival;
  deadline_ = ToSteady(call_->raw_deadline(), now);
  absl::Status status;
  const Clock::duration waited =
      context_.listener == nullptr ? Clock::duration() : context_.listener->Waited(record().peer);
  if (waited > Clock::duration()) {
    const bool ends = deadline_ != Time::max();
    status = CheckWait(waited, ends ? deadline_ - now : context_.options.queue.max_delay, ends);
    if (!status.ok()) context_.gate.counts.late.fetch_add(1, std::memory_order_relaxed);
    if (ends) deadline_ -= waited;
  }
  if (status.ok()) status = message_memory_.Resize(kSilentCallBytes);
  if (status.ok()) status = context_.awaited.Add(*this, context_.options.message_timeout, account_.get());
  if (!status.ok()) return Refuse(status);
  StartRead(&message_);
}

void OneMessageReactor::OnReadDone(bool ok) {
  if (!context_.awaited.Remove(*this)) return;
  // A drain does not wait for the calls that it refuses.
  if (!context_.handler.draining()) open_ = context_.open.HoldCall();
  if (!ok) {
    context_.gate.counts.abandoned.fetch_add(1, std::memory_order_relaxed);
    return Refuse(call_->IsCancelled() ? absl::CancelledError("the client cancelled the call")
                                       : absl::InvalidArgumentError("the call ended before its message was whole"));
  }
  absl::Status status = CheckLength(message_, context_.message_limit());
  const bool is_short = message_.Length() <= kShortMessage;
  if (status.ok() && !is_short && context_.handler.draining()) status = ShuttingDown();
  if (status.ok() && !is_short) status = message_memory_.Resize(message_.Length());
  if (!status.ok()) return Refuse(status);
  if (!is_short || apart_) return ServeApart();
  Serve();
  message_memory_.Shrink(0);
}

void OneMessageReactor::ServeApart() {
  Hold();
  arrival_ = context_.options.clock();
  context_.handler.preparations().Start(record().principal.name, [this](absl::Status status) {
    if (status.ok()) status = context_.handler.CheckWanted(cancelled_.get_token(), deadline_);
    status.ok() ? Serve() : Refuse(status);
    message_memory_.Shrink(0);
    Release();
  });
}

Ticket OneMessageReactor::NewTicket(Rpc rpc) {
  return {.rpc = rpc,
          .call = &record(),
          .deadline = deadline_,
          .stopping = cancelled_.get_token(),
          .principal = record().principal,
          .memory = &memory_,
          .apart = arrival_ != Time(),
          .arrival = arrival_};
}

bool OneMessageReactor::Take(google::protobuf::Message& message) {
  absl::Status status = CheckRead();
  if (status.ok()) status = Parse(message_, message, message_memory_);
  if (!status.ok()) Refuse(status);
  return status.ok();
}

void OneMessageReactor::Refuse(const absl::Status& status) {
  message_.Clear();
  message_memory_.Shrink(0);
  End(status);
}

}  // namespace edgewise::server
