#include "server/validate/generate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/forward/generation.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;

absl::StatusOr<ModelSequence> ParsePrompt(const v1::GenerateRequest& request, const Model& model) {
  if (!request.has_prompt()) return FieldError("prompt", "is missing");
  const v1::Sequence& prompt = request.prompt();
  ASSIGN_OR_RETURN(const TruncateMode truncate, ParseTruncate(prompt.truncate(), "prompt.truncate"));
  if (prompt.has_bias()) return FieldError("prompt.bias", "is set; new tokens have none, so Generate takes none");
  if (prompt.has_features()) {
    return FieldError("prompt.features", "is set; a language model takes tokens: give text or token_ids");
  }
  if (prompt.content_case() == v1::Sequence::CONTENT_NOT_SET) {
    return FieldError("prompt", "has no content; give text or token_ids");
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ParseTokens(prompt, model, "prompt"));
  absl::StatusOr<ModelSequence> prepared = model.Prepare(std::move(tokens), truncate);
  if (!prepared.ok()) return Within("prompt", prepared.status());
  return prepared;
}

absl::Status CheckSampling(const v1::GenerateRequest& request, const RequestLimits& limits) {
  if (request.max_new_tokens() == 0 || request.max_new_tokens() > limits.max_new_tokens) {
    return FieldError("max_new_tokens",
                      absl::StrCat("is ", request.max_new_tokens(), "; allowed are 1 to ", limits.max_new_tokens));
  }
  if (!(request.temperature() >= 0.0) || std::isinf(request.temperature())) {
    return FieldError("temperature",
                      absl::StrCat("is ", request.temperature(),
                                   "; allowed are finite numbers, 0 (the most probable token) and more"));
  }
  if (!(request.top_p() >= 0.0 && request.top_p() <= 1.0)) {
    return FieldError("top_p", absl::StrCat("is ", request.top_p(), "; allowed are 0 (off) to 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckStops(const v1::GenerateRequest& request, const Model& model) {
  if (request.stop().empty()) return absl::OkStatus();
  if (model.config().tokenizer.kind == TokenizerKind::kNone) {
    return FieldError("stop", "is set; this model has no tokenizer, so there is no text to find it in");
  }
  if (request.stop_size() > kMaxStops) {
    return FieldError("stop", absl::StrCat("has ", request.stop_size(), " strings; allowed are at most ", kMaxStops));
  }
  for (int i = 0; i < request.stop_size(); ++i) {
    const size_t bytes = request.stop(i).size();
    if (bytes >= 1 && bytes <= kMaxStopBytes) continue;
    return FieldError(absl::StrCat("stop[", i, "]"),
                      absl::StrCat("has ", bytes, " bytes; allowed are 1 to ", kMaxStopBytes));
  }
  return absl::OkStatus();
}

// A token needs all samples of the whole ensemble.
absl::Status CheckEnsembleIsWhole(const v1::Ensemble& ensemble) {
  if (ensemble.tolerance() != 0.0) {
    return FieldError("ensemble.tolerance",
                      absl::StrCat("is ", ensemble.tolerance(), "; Generate uses all samples for every token"));
  }
  if (ensemble.first_sample() != 0) {
    return FieldError(
        "ensemble.first_sample",
        absl::StrCat("is ", ensemble.first_sample(), "; a part of an ensemble cannot tell which token comes next"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseGenerate(const v1::GenerateRequest& request, const Model& model,
                                            const RequestLimits& limits) {
  const ModelConfig& config = model.config();
  if (config.task != ModelTask::kCausalLm) {
    return FieldError("model", absl::StrCat("is ", Quoted(request.model()), ", which does ", ModelTaskName(config.task),
                                            "; Generate needs one that does causal-lm"));
  }
  ASSIGN_OR_RETURN(ParsedRequest parsed,
                   ParseCommon(request.attention(), request.priority(), request.budget(), request.ensemble(), limits));
  RETURN_IF_ERROR(CheckEnsembleIsWhole(request.ensemble()));
  RETURN_IF_ERROR(CheckSampling(request, limits));
  RETURN_IF_ERROR(CheckStops(request, model));
  auto work = std::make_unique<GenerationWork>();
  GenerationOptions& options = work->options;
  if (request.has_override()) {
    ASSIGN_OR_RETURN(options.attention, ParseOverride(request.override(), request.attention(), model));
  }
  ASSIGN_OR_RETURN(work->prompt, ParsePrompt(request, model));

  options.max_new_tokens = request.max_new_tokens();
  options.temperature = request.temperature();
  options.top_k = request.top_k() >= static_cast<uint32_t>(config.vocab_size) ? 0 : request.top_k();
  options.top_p = request.top_p();
  options.stop.assign(request.stop().begin(), request.stop().end());
  options.seed = parsed.seed;
  options.samples = std::max<uint32_t>(1, request.ensemble().samples());
  if (request.budget().has_max_edges()) options.max_edges = request.budget().max_edges();
  if (request.budget().has_max_density()) options.max_density = request.budget().max_density();
  options.dense = request.attention() == v1::DENSE;

  work->cache_bytes = CacheBytes(config, work->prompt, options);
  if (work->cache_bytes > limits.max_cache_bytes) {
    return FieldError("ensemble.samples",
                      absl::StrCat("is ", options.samples, ", whose keys and values would take up to ",
                                   work->cache_bytes, " bytes; the server holds at most ", limits.max_cache_bytes));
  }
  parsed.task->tokens = static_cast<uint64_t>(work->prompt.valid());
  parsed.task->cost = static_cast<uint64_t>(work->prompt.length());
  parsed.task->generation = std::move(work);
  return parsed;
}

}  // namespace edgewise::server
