#include "server/rpc/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/principal.h"
#include "server/status_details.h"
#include "text/field_error.h"

namespace edgewise::server {
namespace {

void SetError(const absl::Status& status, v1::PredictStreamResponse& response) {
  const grpc::Status wire = ToGrpc(status);
  response.mutable_error()->set_code(wire.error_code());
  response.mutable_error()->set_message(wire.error_message());
}

}  // namespace

void OpenRpcs::AddStream(StreamReactor* stream) {
  const absl::MutexLock lock(&mutex_);
  streams_.insert(stream);
}

void OpenRpcs::RemoveStream(StreamReactor* stream) {
  const absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void OpenRpcs::DrainStreams() {
  const absl::MutexLock lock(&mutex_);
  for (StreamReactor* stream : streams_) stream->Drain();
}

int64_t OpenRpcs::streams() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(streams_.size());
}

StreamReactor::StreamReactor(RpcContext& context, grpc::CallbackServerContext* call)
    : context_(context),
      deadline_(ToSteady(call->deadline(), context.handler.now())),
      principal_(PrincipalOf(*call, context.tokens.get())) {
  context_.open.AddStream(this);
  mutex_.Lock();
  if (context_.handler.draining()) draining_ = half_closed_ = true;
  Advance();
}

void StreamReactor::Advance() {
  while (true) {
    if (disconnected_ || finished_) {
      in_flight_ -= static_cast<uint32_t>(ready_.size());
      ready_.clear();
    }
    if (!writing_ && !ready_.empty()) {
      writing_ = std::move(ready_.front());
      ready_.pop_front();
      const v1::PredictStreamResponse* response = writing_.get();
      ++starting_;
      mutex_.Unlock();
      StartWrite(response);
    } else if (!reading_ && !half_closed_ && in_flight_ < context_.options.stream_in_flight) {
      reading_ = true;
      ++starting_;
      mutex_.Unlock();
      StartRead(&message_);
    } else {
      break;
    }
    mutex_.Lock();
    --starting_;
  }
  if (finished_ || !half_closed_ || in_flight_ > 0 || starting_ > 0) return mutex_.Unlock();
  finished_ = true;
  absl::Status status;
  if (cancelled_.stop_requested()) {
    status = absl::CancelledError("the client cancelled the stream");
  } else if (draining_) {
    status = ShuttingDown();
  }
  mutex_.Unlock();
  context_.metrics.CountRpc(Rpc::kPredictStream, status.code());
  Finish(ToGrpc(status));
}

void StreamReactor::OnReadDone(bool ok) {
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
  const std::string id = message_.request_id();
  const bool duplicate = !ids_.insert(id).second;
  mutex_.Unlock();
  auto response = std::make_unique<v1::PredictStreamResponse>();
  response->set_request_id(id);
  if (duplicate) {
    const absl::Status refused = FieldError(
        "request_id", absl::StrCat("is ", Quoted(id), ", which is in flight on this stream; each needs its own"));
    context_.handler.CountUnadmitted(message_, refused);
    SetError(refused, *response);
    mutex_.Lock();
    ready_.push_back(std::move(response));
  } else {
    v1::PredictStreamResponse* owned = response.release();
    const auto reply = [this, owned](const absl::Status& status) {
      Answer(std::unique_ptr<v1::PredictStreamResponse>(owned), status);
    };
    context_.handler.Start(message_, {.deadline = deadline_,
                                      .stopping = cancelled_.get_token(),
                                      .principal = principal_,
                                      .reply = reply,
                                      .response = owned->mutable_response()});
    mutex_.Lock();
  }
  reading_ = false;
  Advance();
}

void StreamReactor::Answer(std::unique_ptr<v1::PredictStreamResponse> response, const absl::Status& status) {
  if (!status.ok()) SetError(status, *response);
  mutex_.Lock();
  ids_.erase(response->request_id());
  ready_.push_back(std::move(response));
  Advance();
}

void StreamReactor::OnWriteDone(bool ok) {
  mutex_.Lock();
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

void StreamReactor::Drain() {
  mutex_.Lock();
  draining_ = half_closed_ = true;
  Advance();
}

void StreamReactor::OnDone() {
  context_.open.RemoveStream(this);
  delete this;
}

}  // namespace edgewise::server
