// Fuzz target of the heads and bodies of HTTP.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "edgewise/v1/inference.pb.h"
#include "http/bodies.pb.h"
#include "server/base/memory.h"
#include "server/http/body.h"
#include "server/http/head.h"
#include "server/http/json_in.h"
#include "server/http/json_message.h"
#include "server/http/openai.h"
#include "server/oip/json.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

using server::JsonDialect;

constexpr uint64_t kObjectBytes = 1024;  // the message itself

void RequireError(const absl::Status& status) {
  RequireReadable(std::string(status.message()));
  for (const int code : {400, 429, 500}) {
    Require(nlohmann::json::accept(server::OpenAiError(status, code)), "an error is JSON");
  }
}

template <typename Message>
bool Read(const std::string& text, JsonDialect dialect, Message& message) {
  server::MemoryLedger ledger(uint64_t{64} << 20);
  server::MemoryHold memory(ledger);
  const absl::Status status = server::ReadJson(text, dialect, message, memory);
  Require(message.SpaceUsedLong() <= memory.bytes() + kObjectBytes, "a body takes no more than was counted");
  if (!status.ok()) {
    RequireError(status);
    return false;
  }
  Require(nlohmann::json::accept(text), "what is taken is JSON");
  return true;
}

template <typename Message>
void ReadNative(const std::string& text) {
  Message ours, theirs;
  if (!Read(text, JsonDialect::kProtobuf, ours)) return;
  if (!google::protobuf::util::JsonStringToMessage(text, &theirs).ok()) return;
  Require(ours.SerializeAsString() == theirs.SerializeAsString(), "a body is read as Protobuf reads it");
}

void ReadGeneration(const std::string& text, bool chat) {
  http::OpenAiGeneration body;
  if (!Read(text, JsonDialect::kPlain, body)) return;
  auto plan = server::ParseGeneration(body, chat, {});
  if (!plan.ok()) return RequireError(plan.status());
  Require(plan->choices() >= 1 && plan->choices() <= 128, "a body asks for some choices");
  for (int choice = 0; choice < plan->choices(); ++choice) {
    plan->Choose(choice);
    const v1::GenerateRequest& request = plan->request;
    Require(request.has_prompt() != (request.messages_size() > 0), "a choice has a prompt or messages");
    if (choice % plan->n == 0 && plan->n > 1) {
      Require(request.ensemble().seed() == plan->seed, "the first choice has the seed itself");
    }
    const std::string& arguments = request.template_arguments();
    Require(arguments.empty() || nlohmann::json::accept(arguments), "arguments of a template are JSON");
  }
}

// A body in chunks is the same whether it comes whole or byte by byte.
void ReadChunks(const std::string& bytes) {
  auto whole = server::BodyReader::OfChunks(1 << 16), parts = whole;
  std::string body, same;
  const size_t used = whole.Read(bytes, body);
  size_t at = 0;
  while (at < bytes.size() && !parts.done() && parts.refusal().code == 0) {
    at += parts.Read(std::string_view(bytes).substr(at, 1), same);
  }
  Require(at == used && body == same, "chunks are the same in parts");
  Require(whole.done() == parts.done() && whole.refusal().code == parts.refusal().code, "and so is their end");
  Require(body.size() <= used, "a body has no more than was sent");
  if (whole.refusal().code != 0) RequireError(whole.refusal().status);
}

// A body of infer: JSON, and behind a NUL the bytes of its tensors.
void ReadInfer(const std::string& text) {
  const size_t end = text.find('\0');
  const std::string head = text.substr(0, end), tail = end == std::string::npos ? "" : text.substr(end + 1);
  const std::string bytes = head + tail;
  server::MemoryLedger ledger(uint64_t{64} << 20);
  server::MemoryHold memory(ledger);
  server::InferBody body;
  const absl::Status status = server::ReadInferBody(bytes, std::to_string(head.size()), memory, body);
  Require(body.message.SpaceUsedLong() <= memory.bytes() + kObjectBytes, "a body takes no more than was counted");
  if (!status.ok()) return RequireError(status);
  Require(nlohmann::json::accept(head), "what is taken is JSON");
  size_t raw = 0;
  for (const server::InputTensor& tensor : body.tensors) raw += tensor.raw ? tensor.raw->size() : 0;
  Require(raw == tail.size(), "every byte behind the JSON is of a tensor");
  server::JsonOut json;
  server::WriteMessage(body.message, server::JsonDialect::kPlain, json);
  Require(nlohmann::json::accept(json.text()), "a message is written as JSON");
  inference::ModelInferResponse answer;
  const absl::StatusOr<server::HttpAnswer> written = server::WriteInferAnswer(body, answer, NoBounds());
  Require(written.ok() && nlohmann::json::accept(written->body), "an answer is JSON");
}

}  // namespace

void FuzzHttp(const std::string& bytes) {
  static google::protobuf::LogSilencer silence;
  if (bytes.empty()) return;
  const std::string rest = bytes.substr(1);
  const auto choice = static_cast<uint8_t>(bytes[0]);
  if (choice >= 128) return ReadInfer(rest);
  switch (choice % 6) {
    case 0: {
      const server::HttpRefusal refusal = server::CheckHead(rest);
      Require((refusal.code == 0) == refusal.status.ok(), "a refusal has a reason");
      if (refusal.code != 0) RequireError(refusal.status);
      ReadChunks(rest);
      server::HttpTarget target;
      if (server::ParseTarget("GET", rest, &target)) {
        Require(target.path.substr(0, 1) == "/" && target.path.find('?') == std::string::npos, "a path is one");
      }
      server::IsServedHost(rest, {"*.example.com"});
      server::IsAllowedOrigin(rest, "localhost", {});
      std::string decoded;
      server::DecodeSegment(rest, &decoded);
      return;
    }
    case 1:
      return ReadGeneration(rest, false);
    case 2:
      return ReadGeneration(rest, true);
    case 3: {
      http::OpenAiEmbeddings embeddings;
      http::TeiEmbed embed;
      http::TeiPredict predict;
      http::TeiSimilarity similarity;
      http::CohereRerank rerank;
      Read(rest, JsonDialect::kPlain, embeddings);
      Read(rest, JsonDialect::kPlain, embed);
      Read(rest, JsonDialect::kPlain, predict);
      Read(rest, JsonDialect::kPlain, similarity);
      Read(rest, JsonDialect::kPlain, rerank);
      return;
    }
    case 4:
      return ReadNative<v1::PredictRequest>(rest);
    default:
      return ReadNative<v1::GenerateRequest>(rest);
  }
}

}  // namespace edgewise::fuzz
