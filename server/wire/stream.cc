#include "server/wire/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "server/base/status_details.h"
#include "server/wire/grpc_status.h"
#include "server/wire/message.h"

namespace edgewise::server {
namespace {

void SetError(const absl::Status& status, v1::PredictStreamResponse& response) {
  const grpc::Status wire = ToGrpc(status);
  response.mutable_error()->set_code(wire.error_code());
  response.mutable_error()->set_message(wire.error_message());
}

}  // namespace

StreamReactor::StreamReactor(RpcContext& context, RawCall& call)
    : RawReactor(call), context_(context), deadline_(ToSteady(call_->raw_deadline(), record().arrival)) {
  record().rpc = Rpc::kPredictStream;
  record().quiet = true;  // its messages are logged
  context_.open.AddStream(this);
  mutex_.Lock();
  const absl::Status status = memory_.Resize(kSilentCallBytes);
  if (!status.ok()) EndWith(status);
  if (context_.handler.draining()) EndWith(ShuttingDown());
  Advance();
}

void StreamReactor::EndWith(const absl::Status& status) {
  if (end_.ok()) end_ = status;
  half_closed_ = true;
}

void StreamReactor::Advance() {
  while (true) {
    if (disconnected_ || finished_) {
      in_flight_ -= static_cast<uint32_t>(ready_.size());
      ready_.clear();
    }
    const bool room = in_flight_ < context_.options.stream_in_flight && unsent_bytes_ <= context_.options.unsent_bytes;
    if (!writing_ && !ready_.empty()) {
      writing_ = std::move(ready_.front());
      ready_.pop_front();
      const grpc::ByteBuffer* bytes = &writing_->bytes;
      ++starting_;
      mutex_.Unlock();
      StartWrite(bytes);
    } else if (!reading_ && !half_closed_ && room) {
      reading_ = true;
      ++starting_;
      mutex_.Unlock();
      Read();
    } else {
      break;
    }
    mutex_.Lock();
    --starting_;
  }
  if (finished_ || !half_closed_ || in_flight_ > 0 || starting_ > 0) return mutex_.Unlock();
  finished_ = true;
  const absl::Status status =
      cancelled_.stop_requested() ? absl::CancelledError("the client cancelled the stream") : end_;
  mutex_.Unlock();
  Record(status);
  context_.Finish(*this, *call_, status);
}

void StreamReactor::Read() {
  // A stream may be silent for long; only its first message has to come in time.
  const Clock::duration patience = began_ ? Clock::duration::max() : context_.options.message_timeout;
  const absl::Status status = context_.awaited.Add(*this, patience, account_.get());
  if (status.ok()) return StartRead(&message_);
  mutex_.Lock();
  reading_ = false;
  EndWith(status);
  mutex_.Unlock();  // the caller goes on
}

void StreamReactor::OnReadDone(bool ok) {
  if (!context_.awaited.Remove(*this)) return;  // GiveUp has ended the stream
  began_ = true;
  mutex_.Lock();
  if (!ok) {
    reading_ = false;
    half_closed_ = true;
    return Advance();
  }
  if (finished_) {  // the status is on its way: nothing may be written any more
    reading_ = false;
    return mutex_.Unlock();
  }
  ++in_flight_;  // reading_ stays set until message_ is free again
  mutex_.Unlock();
  absl::Status status = CheckRead();
  if (status.ok()) status = CheckLength(message_, context_.message_limit());
  const bool is_short = message_.Length() <= kShortMessage;
  if (status.ok() && !is_short) status = message_memory_.Resize(message_.Length());
  status.ok() && !is_short ? ServeApart() : ServeHere(status, Time());
}

void StreamReactor::ServeApart() {
  Hold();
  context_.handler.preparations().Start(record().principal.name,
                                        [this, arrival = context_.options.clock()](absl::Status status) {
                                          if (status.ok())
                                            status = context_.handler.CheckWanted(cancelled_.get_token(), deadline_);
                                          ServeHere(status, arrival);
                                          Release();
                                        });
}

void StreamReactor::ServeHere(absl::Status status, Time arrival) {
  {
    ParsedMessage<v1::PredictRequest> message;
    if (status.ok()) status = Parse(message_, *message, message_memory_);
    message_.Clear();
    if (status.ok()) {
      Serve(*message, arrival);
    } else {
      Send(NewAnswer(arrival), status);
    }
  }
  message_memory_.Shrink(0);
  mutex_.Lock();
  reading_ = false;
  Advance();
}

// A message is a call of its own.
StreamReactor::AnswerPtr StreamReactor::NewAnswer(Time arrival) {
  auto answer = std::make_unique<Answer>(*account_);
  Call& call = answer->call;
  call.name = record().name;
  call.infers = Rpc::kPredict;
  call.peer = record().peer;
  call.principal = record().principal;
  call.arrival = arrival != Time() ? arrival : context_.options.clock();
  return answer;
}

void StreamReactor::Serve(const v1::PredictRequest& message, Time arrival) {
  const std::string& id = message.request_id();
  mutex_.Lock();
  const bool duplicate = !ids_.insert(id).second;
  mutex_.Unlock();
  AnswerPtr answer = NewAnswer(arrival);
  answer->response.set_request_id(id);
  if (duplicate) {
    const absl::Status refused = FieldError(
        "request_id", absl::StrCat("is ", Quoted(id), ", which is in flight on this stream; each needs its own"));
    context_.handler.Name(answer->call, message.model(), message.version());
    return Send(std::move(answer), refused);
  }
  Answer* owned = answer.release();
  const auto reply = [this, owned](const absl::Status& status) {
    mutex_.Lock();
    ids_.erase(owned->response.request_id());
    mutex_.Unlock();
    Send(AnswerPtr(owned), status);
  };
  Ticket ticket = {.call = &owned->call,
                   .deadline = deadline_,
                   .stopping = cancelled_.get_token(),
                   .principal = record().principal,
                   .reply = reply,
                   .response = owned->response.mutable_response(),
                   .line = line_,
                   .memory = &owned->memory,
                   .apart = arrival != Time(),
                   .arrival = arrival};
  context_.handler.Start(message, std::move(ticket));
}

void StreamReactor::Send(AnswerPtr answer, const absl::Status& status) {
  context_.calls.End(answer->call, status);
  if (!status.ok()) SetError(status, answer->response);
  answer->bytes = Serialize(answer->response);
  answer->response.Clear();
  answer->memory.Shrink(answer->bytes.Length());
  mutex_.Lock();
  unsent_bytes_ += answer->bytes.Length();
  ready_.push_back(std::move(answer));
  Advance();
}

void StreamReactor::OnWriteDone(bool ok) {
  mutex_.Lock();
  unsent_bytes_ -= writing_->bytes.Length();
  writing_.reset();
  --in_flight_;
  if (!ok) disconnected_ = half_closed_ = true;
  Advance();
}

void StreamReactor::OnCancel() {
  cancelled_.request_stop();
  mutex_.Lock();
  disconnected_ = half_closed_ = true;
  Advance();
}

void StreamReactor::Drain() { GiveUp(ShuttingDown()); }

void StreamReactor::GiveUp(const absl::Status& status) {
  mutex_.Lock();
  memory_.Shrink(0);
  EndWith(status);
  Advance();
}

}  // namespace edgewise::server
