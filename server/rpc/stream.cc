#include "server/rpc/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/grpc_status.h"
#include "server/status_details.h"

namespace edgewise::server {

StreamReactor::StreamReactor(InferenceServiceImpl& service, grpc::CallbackServerContext* context)
    : service_(service), deadline_(ToSteady(context->deadline(), service.calls_.now())) {
  {
    const absl::MutexLock lock(&service_.streams_mutex_);
    service_.streams_.insert(this);
  }
  mutex_.Lock();
  if (service_.calls_.draining()) draining_ = half_closed_ = true;
  Advance();
}

void StreamReactor::Advance() {
  while (true) {
    if (broken_ || finished_) {
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
    } else if (!reading_ && !half_closed_ && in_flight_ < service_.options_.stream_in_flight) {
      reading_ = true;
      ++starting_;
      mutex_.Unlock();
      StartRead(&request_);
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
  service_.metrics_.CountRpc(Rpc::kPredictStream, status.code());
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
  ++in_flight_;  // reading_ stays set until request_ is free again
  const std::string id = request_.request_id();
  const bool duplicate = !ids_.insert(id).second;
  mutex_.Unlock();
  auto response = std::make_unique<v1::PredictStreamResponse>();
  if (duplicate) {
    response->set_request_id(id);
    response->mutable_error()->set_code(static_cast<int32_t>(absl::StatusCode::kInvalidArgument));
    response->mutable_error()->set_message(
        absl::StrCat("request_id is ", Quoted(id), ", which is in flight on this stream; each needs its own"));
    ModelMetrics& metrics = service_.calls_.MetricsOf(request_.model(), request_.version());
    {
      const MetricsEvent event = metrics.Event();
      metrics.CountRequest(absl::StatusCode::kInvalidArgument, 0.0);
      metrics.CountRejection(Rejection::kInvalid);
    }
    mutex_.Lock();
    reading_ = false;
    ready_.push_back(std::move(response));
    return Advance();
  }
  v1::PredictResponse* answer = response->mutable_response();
  // std::function wants a copyable closure.
  auto shared = std::make_shared<std::unique_ptr<v1::PredictStreamResponse>>(std::move(response));
  service_.predictor_.Predict(request_, deadline_, cancelled_.get_token(), answer,
                              [this, id, shared](absl::Status status) { Answer(id, std::move(*shared), status); });
  mutex_.Lock();
  reading_ = false;
  Advance();
}

void StreamReactor::Answer(const std::string& request_id, std::unique_ptr<v1::PredictStreamResponse> response,
                           const absl::Status& status) {
  response->set_request_id(request_id);
  if (!status.ok()) {
    const grpc::Status wire = ToGrpc(status);
    response->mutable_error()->set_code(wire.error_code());
    response->mutable_error()->set_message(wire.error_message());
  }
  mutex_.Lock();
  ids_.erase(request_id);
  ready_.push_back(std::move(response));
  Advance();
}

void StreamReactor::OnWriteDone(bool ok) {
  mutex_.Lock();
  writing_.reset();
  --in_flight_;
  if (!ok) broken_ = half_closed_ = true;
  Advance();
}

void StreamReactor::OnCancel() {
  cancelled_.request_stop();
  mutex_.Lock();
  broken_ = half_closed_ = true;
  Advance();
}

void StreamReactor::Drain() {
  mutex_.Lock();
  draining_ = half_closed_ = true;
  Advance();
}

void StreamReactor::OnDone() {
  {
    const absl::MutexLock lock(&service_.streams_mutex_);
    service_.streams_.erase(this);
  }
  delete this;
}

}  // namespace edgewise::server
