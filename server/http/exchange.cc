#include "server/http/exchange.h"

#include <utility>

#include "server/http/routes.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kJsonOfByte = 4;  // a float of four bytes takes at most 15 digits, with its comma

}  // namespace

void Exchange::Answer(HttpAnswer answer) {
  const absl::Status status = memory.Resize(answer.body.size());
  if (!status.ok()) return Refuse(status);
  Record(absl::OkStatus(), answer.code);
  Write(std::move(answer));
}

void Exchange::AnswerJson(JsonOut& json, HttpAnswer answer) {
  if (!json.status().ok()) return Refuse(json.status());
  answer.body = json.Take();
  Answer(std::move(answer));
}

void Exchange::End(const absl::Status& status) {
  Record(status, status.ok() ? 200 : HttpCodeOf(status));
  EndChunks();
}

absl::Status Exchange::ExpectJson(uint64_t message_bytes) {
  return memory.Resize(memory.bytes() + kJsonOfByte * message_bytes);
}

void Exchange::Refuse(const HttpRefusal& refusal) {
  request.body = std::string();
  body_memory.Shrink(0);
  Record(refusal.status, refusal.code);
  Write(ErrorAnswer(refusal, route->error));
}

Ticket TicketOf(Exchange& exchange, Rpc rpc, MemoryHold& memory) {
  return {.rpc = rpc,
          .call = &exchange.call,
          .deadline = exchange.deadline,
          .stopping = exchange.cancelled.get_token(),
          .principal = exchange.call.principal,
          .json = true,
          .memory = &memory,
          .apart = exchange.apart,
          .alone = exchange.alone,
          .arrival = exchange.apart ? exchange.call.arrival : Time()};
}

}  // namespace edgewise::server
