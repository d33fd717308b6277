// OpenAI's API: models, completions, chat completions, embeddings (docs/http.md).
#ifndef EDGEWISE_SERVER_HTTP_OPENAI_H_
#define EDGEWISE_SERVER_HTTP_OPENAI_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/field_error.h"
#include "edgewise/v1/inference.pb.h"
#include "http/bodies.pb.h"
#include "server/http/json_out.h"
#include "server/http/routes.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// `parts` must outlive the routes.
void AddOpenAiRoutes(Routes& routes, CallParts& parts);
void AddOpenAiModels(Routes& routes, CallParts& parts);
void AddOpenAiGeneration(Routes& routes, CallParts& parts);
void AddOpenAiEmbeddings(Routes& routes, CallParts& parts);

// {"error": {"message", "type", "param", "code"}}.
std::string OpenAiError(const absl::Status& status, int code);

// The name that bodies have for a field of our requests: "edgewise.samples". With Renamed, for errors of requests;
// those of bodies have these names.
std::string NameInBody(const std::string& field);

// Refuses the options that are for generations.
absl::Status CheckWritesNothing(const http::Options& options);
// Refuses a cut that there is not.
absl::Status CheckTruncate(const http::Options& options);

// "NAME" or "NAME@VERSION".
struct ModelName {
  std::string name;
  int64_t version = 0;
};
absl::StatusOr<ModelName> ParseModelName(const std::string& model);

// The generations that a body asks for: `n` choices for each prompt, next to each other.
struct GenerationPlan {
  v1::GenerateRequest request;        // without its prompt, where that is one of these
  std::vector<v1::Sequence> prompts;  // of completions; empty: the request has messages
  int n = 1;
  bool logprobs = false;
  bool echo = false;  // the prompts are scored, and nothing is written where max_new_tokens is 0
  uint64_t seed = 0;  // of the first choice of each prompt, where n is above 1

  int choices() const { return n * static_cast<int>(std::max<size_t>(1, prompts.size())); }
  // Makes `request` that of one choice. In their order, each once.
  void Choose(int choice);
};

// Takes what it needs out of `body`. INVALID_ARGUMENT: a field is wrong, or asks for what is not served.
absl::StatusOr<GenerationPlan> ParseGeneration(http::OpenAiGeneration& body, bool chat, const RequestLimits& limits);

// A new id: "<prefix><24 hexadecimal digits>".
std::string NewId(const std::string& prefix);
// Seconds since 1970.
int64_t UnixTime();

// The fields of a report that bodies of answers have in common; and their shape, without brackets.
inline constexpr char kEdgesShape[] =
    R"("edges":"number","density":"number","budget":"integer|null","capped":"boolean")";
void WriteEdges(double edges, double pairs, uint64_t budget, bool capped, JsonOut& json);

// Sets what the object `edgewise` of a body says.
template <typename Message>
absl::Status SetOptions(const http::Options& options, Message& message) {
  if (options.has_max_edges() && options.has_max_density()) {
    return FieldError("edgewise.max_edges", "is given beside max_density; choose one of them");
  }
  if (options.has_max_edges()) message.mutable_budget()->set_max_edges(options.max_edges());
  if (options.has_max_density()) message.mutable_budget()->set_max_density(options.max_density());
  if (options.allow_degraded()) message.mutable_budget()->set_allow_degraded(true);
  if (options.samples() > 0) message.mutable_ensemble()->set_samples(options.samples());
  if (options.has_seed()) message.mutable_ensemble()->set_seed(options.seed());
  if (options.has_override()) *message.mutable_override() = options.override();
  message.set_profile(options.profile());
  message.set_priority(options.priority());
  return absl::OkStatus();
}

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_OPENAI_H_
