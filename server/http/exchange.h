// One request of HTTP from its head to the end of its answer, as routes see it.
#ifndef EDGEWISE_SERVER_HTTP_EXCHANGE_H_
#define EDGEWISE_SERVER_HTTP_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/work_bounds.h"
#include "server/base/memory.h"
#include "server/http/json_out.h"
#include "server/http/message.h"
#include "server/request/call.h"
#include "server/request/request.h"

namespace edgewise::server {

struct Route;

// The route answers once: Answer or Refuse; or Begin, any number of Send, and End. These may come from any thread, one
// at a time, and never block. Whoever is to answer keeps a shared_ptr.
// As bounds of work it asks whether the client still waits for the answer.
class Exchange : public std::enable_shared_from_this<Exchange>, public WorkBounds {
 public:
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Constant once the route is called.
  HttpRequest request;
  const Route* route = nullptr;
  Call call;
  std::shared_ptr<MemoryAccount> account;  // null: nothing is counted
  Time deadline = Time::max();
  bool apart = false;  // the route is called on a thread for long messages
  bool alone = false;  // Ticket::alone

  std::stop_source cancelled;  // requested when the client is gone
  MemoryHold body_memory;      // of the body, and of what is made of it; the route takes it before it starts a request
  MemoryHold memory;           // of the request and its answer
  MemoryHold behind;           // of the connection: for the bytes that have come behind the request

  // An answer whose bytes are counted; 429 where there is no memory for them.
  void Answer(HttpAnswer answer);
  void AnswerJson(std::string json) { Answer({.body = std::move(json)}); }
  // The same with what was written within the bounds of this exchange; refuses with their error.
  void AnswerJson(JsonOut& json, HttpAnswer answer = {});
  // Counts the JSON of an answer before it is made. `message_bytes`: the size of the message that it is made of.
  absl::Status ExpectJson(uint64_t message_bytes);
  // Answers with an error in the shape of the route's API.
  void Refuse(const HttpRefusal& refusal);
  void Refuse(const absl::Status& status) { Refuse(HttpRefusal{HttpCodeOf(status), status}); }

  // A stream of unknown length with code 200.
  virtual void Begin(const std::string& type) = 0;
  virtual void Send(std::string bytes) = 0;
  // `status`: how the call ended, for the log. The client is told by the events that were sent.
  void End(const absl::Status& status = absl::OkStatus());
  // Whether as many pieces wait to be sent as may (options.unsent_tokens).
  virtual bool full() const = 0;

 protected:
  Exchange() = default;

 private:
  virtual void Write(HttpAnswer answer) = 0;
  virtual void EndChunks() = 0;
  // The call ends with this status and code: counts and logs it. Once, before its answer is written.
  virtual void Record(const absl::Status& status, int code) = 0;
};

// The ticket of a request that this exchange asks for, without what its answer needs. `memory`: of that request; it
// lives until its reply.
Ticket TicketOf(Exchange& exchange, Rpc rpc, MemoryHold& memory);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_EXCHANGE_H_
