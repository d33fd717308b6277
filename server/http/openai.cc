#include "server/http/openai.h"

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/field_error.h"

namespace edgewise::server {
namespace {

// The beginnings of our fields' names, and their names in bodies.
constexpr std::pair<const char*, const char*> kNames[] = {{"max_new_tokens", "max_tokens"},
                                                          {"prompt.text", "prompt"},
                                                          {"prompt.token_ids", "prompt"},
                                                          {"ensemble.seed", "seed"},
                                                          {"ensemble.", "edgewise."},
                                                          {"budget.", "edgewise."},
                                                          {"profile", "edgewise.profile"},
                                                          {"priority", "edgewise.priority"},
                                                          {"override", "edgewise.override"},
                                                          {"template_arguments.tools", "tools"},
                                                          {"template_arguments", "chat_template_kwargs"},
                                                          {"outputs.dimensions", "dimensions"},
                                                          {"outputs.alternatives", "logprobs"},
                                                          {"outputs.token_scores", "echo"},
                                                          {"min_p", "edgewise.min_p"},
                                                          {"repetition_penalty", "edgewise.repetition_penalty"}};

const char* TypeOf(int code) {
  return code == 401   ? "authentication_error"
         : code == 403 ? "permission_error"
         : code == 429 ? "rate_limit_error"
         : code >= 500 ? "server_error"
                       : "invalid_request_error";
}

}  // namespace

std::string NameInBody(const std::string& field) {
  for (const auto& [ours, name] : kNames) {
    if (absl::StartsWith(field, ours)) return absl::StrCat(name, field.substr(std::string_view(ours).size()));
  }
  return field;
}

absl::Status CheckWritesNothing(const http::Options& options) {
  static constexpr char kWhy[] = "is set; it is for texts that are written";
  REFUSE_IF(options.top_k() > 0, "edgewise.top_k", kWhy);
  REFUSE_IF(options.min_p() != 0.0, "edgewise.min_p", kWhy);
  REFUSE_IF(options.has_repetition_penalty(), "edgewise.repetition_penalty", kWhy);
  return absl::OkStatus();
}

absl::Status CheckTruncate(const http::Options& options) {
  REFUSE_IF(!v1::Truncate_IsValid(options.truncate()), "edgewise.truncate", "is ", static_cast<int>(options.truncate()),
            "; allowed are REFUSE, HEAD and TAIL");
  return absl::OkStatus();
}

std::string OpenAiError(const absl::Status& status, int code) {
  const std::string field = FieldOf(status), message(status.message());
  const bool unknown_model = absl::IsNotFound(status);
  JsonOut json;
  json.BeginObject().Key("error").BeginObject();
  json.Key("message").String(message).Key("type").String(TypeOf(code)).Key("param");
  unknown_model ? json.String("model") : field.empty() ? json.Null() : json.String(field);
  json.Key("code");
  unknown_model ? json.String("model_not_found")
  : code == 401 ? json.String("invalid_api_key")
  : code == 429 ? json.String("rate_limit_exceeded")
                : json.Null();
  json.EndObject().EndObject();
  return json.Take();
}

absl::StatusOr<ModelName> ParseModelName(const std::string& model) {
  REFUSE_IF(model.empty(), "model", "is missing: give NAME or NAME@VERSION");
  const size_t at = model.find('@');
  ModelName parsed{.name = model.substr(0, at)};
  if (at == std::string::npos) return parsed;
  REFUSE_IF(!absl::SimpleAtoi(model.substr(at + 1), &parsed.version) || parsed.version < 1, "model", "is ",
            Quoted(model), "; the version behind @ is a number from 1");
  return parsed;
}

std::string NewId(const std::string& prefix) {
  thread_local absl::BitGen random;
  return absl::StrFormat("%s%016x%08x", prefix, absl::Uniform<uint64_t>(random), absl::Uniform<uint32_t>(random));
}

int64_t UnixTime() { return absl::ToUnixSeconds(absl::Now()); }

void WriteEdges(double edges, double pairs, uint64_t budget, bool capped, JsonOut& json) {
  json.Key("edges").Number(edges).Key("density").Number(pairs > 0.0 ? edges / pairs : 0.0).Key("budget");
  budget > 0 ? json.Unsigned(budget) : json.Null();
  json.Key("capped").Bool(capped);
}

}  // namespace edgewise::server
