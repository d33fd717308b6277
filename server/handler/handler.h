// Carries a request around its computation: admits, checks and queues it, and at its end answers and counts it.
// Knows no RPC library; wire/ puts gRPC around it.
#ifndef EDGEWISE_SERVER_HANDLER_HANDLER_H_
#define EDGEWISE_SERVER_HANDLER_HANDLER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/base/options.h"
#include "server/handler/answer_line.h"
#include "server/handler/long_work_threads.h"
#include "server/handler/request_bounds.h"
#include "server/handler/shadow.h"
#include "server/models/repository.h"
#include "server/request/call.h"
#include "server/request/request.h"
#include "server/schedule/queue.h"

namespace edgewise::server {

// All methods may be called from any thread; none blocks.
class RequestHandler {
 public:
  // All must outlive the handler and every request in flight.
  RequestHandler(const ServerOptions& options, MemoryLedger& memory, Repository& repository, RequestQueue& queue)
      : options_(options),
        repository_(repository),
        queue_(queue),
        shadows_(options, memory, queue),
        answers_("long answers", std::numeric_limits<size_t>::max()),
        preparations_("preparation", options.queue.max_requests) {}

  // Answers `message` (v1::PredictRequest or v1::GenerateRequest), which is not used after the return. `ticket`: as the
  // RPC makes it; its `reply` may come before the return. Slow preparation (an image, or a text that turns out to be
  // much work) runs on a thread of its own.
  template <typename Message>
  void Start(const Message& message, Ticket ticket);
  // The call asks for this model. Start says so itself; a call that is refused before it is to be counted and logged
  // under that name, if the repository has it.
  void Name(Call& call, const std::string& model, int64_t version = 0) const {
    Name(call, model, repository_.Resolve(model, version));
  }

  // From now on every new request is UNAVAILABLE. Messages that wait to be prepared are not new.
  void Drain() { draining_.store(true); }
  // Those that are not prepared yet are UNAVAILABLE too.
  void CancelPreparing() { cancelled_.store(true); }
  bool draining() const { return draining_.load(); }
  // For messages that are not short: the RPC parses and starts them there. Likewise for calls that describe models.
  LongWorkThreads& preparations() { return preparations_; }
  // The order of what a call sends, when that is more than one message.
  std::shared_ptr<AnswerLine> NewLine(const Principal& principal) {
    return std::make_shared<AnswerLine>(answers_, principal.name, [this] { Wake(); });
  }
  // Requests between Start and the return of `reply`, messages that are prepared apart and answers that are written so.
  int64_t in_flight() const { return in_flight_.load() + preparations_.count() + answers_.count(); }
  // Call once, after the engine has ended all requests: returns when every answer is written.
  void StopAnswers() { answers_.Stop(); }
  // CANCELLED, DEADLINE_EXCEEDED or UNAVAILABLE: nobody waits for the answer, or CancelPreparing was called.
  absl::Status CheckWanted(const std::stop_token& stopping, Time deadline) const;
  // Tells the engine that a client took tokens or cancelled, so that its generation can go on.
  void Wake() { queue_.Wake(); }

 private:
  // Names the model of a ticket and its level, and gives the request that the message asks for, which is counted as
  // valid. The metrics of an invalid one are those of the version asked for, of the latest if there is no such version,
  // `_other` for an unknown model.
  template <typename Message>
  absl::StatusOr<RequestPtr> Admit(const Message& message, WorkBounds& bounds, Ticket& ticket);
  // Starts the message again on a thread of `preparations_`; it is copied.
  template <typename Message>
  void StartApart(const Message& message, Ticket ticket);
  void Name(Call& call, const std::string& model, const Resolved& resolved) const;
  // Has the engine tell `request` of its tokens and its end.
  void Connect(Request& request);
  void Send(Request& request, const GeneratedToken& token, FinishReason finish);
  // A request has ended. A long answer, and one that comes behind others of its call, is written on `answers_`.
  void Finish(Request& request, const absl::Status& status);
  // The last step of every request.
  void End(Request& request, absl::Status status);
  // The last step of a message that became no request.
  void Refuse(const Ticket& ticket, const absl::Status& status);

  const ServerOptions& options_;
  Repository& repository_;
  RequestQueue& queue_;
  Shadows shadows_;
  std::atomic<bool> draining_ = false, cancelled_ = false;
  std::atomic<int64_t> in_flight_ = 0;
  LongWorkThreads answers_;       // that are not short
  LongWorkThreads preparations_;  // last: its threads use the others until they are joined
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_HANDLER_H_
