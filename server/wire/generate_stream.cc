#include "server/wire/generate_stream.h"

#include <utility>

#include "server/wire/message.h"

namespace edgewise::server {

void GenerateReactor::Serve() {
  ParsedMessage<v1::GenerateRequest> message;
  if (!Take(*message)) return;
  Ticket ticket = NewTicket(Rpc::kGenerate);
  ticket.reply = [this](const absl::Status& status) { End(status); };
  ticket.stream = this;
  ticket.line = context_.handler.NewLine(record().principal);
  context_.handler.Start(*message, std::move(ticket));  // the end may come before the return
}

void GenerateReactor::Advance() {
  if (starting_) return mutex_.Unlock();             // that thread goes on
  if (disconnected_ || (ended_ && !status_.ok())) {  // nobody reads the rest, or it would only delay the error
    unsent_.fetch_sub(waiting_.size());
    waiting_.clear();
  }
  if (writing_ || finished_) return mutex_.Unlock();
  if (!waiting_.empty()) {
    sending_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    const grpc::ByteBuffer* message = &sending_;
    starting_ = true;
    mutex_.Unlock();
    StartWrite(message);
    mutex_.Lock();
    starting_ = false;
    return Advance();
  }
  if (!ended_) return mutex_.Unlock();
  finished_ = true;
  const absl::Status status = status_;
  mutex_.Unlock();
  context_.Finish(*this, *call_, status);
}

void GenerateReactor::Send(std::unique_ptr<v1::GenerateResponse> message) {
  grpc::ByteBuffer bytes = Serialize(*message);
  mutex_.Lock();
  unsent_.fetch_add(1);
  waiting_.push_back(std::move(bytes));
  Advance();
}

void GenerateReactor::End(const absl::Status& status) {
  Record(status);
  mutex_.Lock();
  ended_ = true;
  status_ = status;
  Advance();
}

void GenerateReactor::OnWriteDone(bool ok) {
  if (!ok) cancelled_.request_stop();
  mutex_.Lock();
  writing_ = false;
  const bool was_full = unsent_.fetch_sub(1) >= context_.options.unsent_tokens;
  if (!ok) disconnected_ = true;
  if (was_full || !ok) context_.handler.Wake();
  Advance();
}

void GenerateReactor::OnCancel() {
  OneMessageReactor::OnCancel();
  context_.handler.Wake();
  mutex_.Lock();
  disconnected_ = true;
  Advance();
}

}  // namespace edgewise::server
