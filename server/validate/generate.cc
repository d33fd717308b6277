#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/forward/generation.h"
#include "server/validate/answer_size.h"
#include "server/validate/common.h"
#include "server/validate/validate.h"

namespace edgewise::server {
namespace {

constexpr int kMaxStops = 16, kMaxMessages = 1024;
constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};
constexpr size_t kMaxStopBytes = 256;
constexpr uint64_t kHeldBytes = uint64_t{64} << 10;  // of a generation: its tokens that are not sent, its text
constexpr double kMaxPenalty = 2.0, kMaxRepetitionPenalty = 100.0;
// Those of an alternative, in all tokens that are not sent; and of a token of the prompt or text, for penalties.
constexpr uint64_t kAlternativeBytes = uint64_t{4} << 10, kSeenBytes = 64;

absl::StatusOr<ModelSequence> ParseMessages(const v1::GenerateRequest& message, const Model& model,
                                            absl::CivilSecond now, WorkBounds& bounds) {
  REFUSE_IF(message.has_prompt(), "messages", "cannot go with a prompt: give one of them");
  REFUSE_IF(message.messages_size() > kMaxMessages, "messages", "has ", message.messages_size(),
            " entries; allowed are at most ", kMaxMessages);
  ReservedBytes copies(bounds);
  RETURN_IF_ERROR(copies.Resize(message.ByteSizeLong()));
  std::vector<chat::Message> messages;
  for (const v1::ChatMessage& one : message.messages()) {
    const bool known = std::find(std::begin(kRoles), std::end(kRoles), one.role()) != std::end(kRoles);
    REFUSE_IF(!known, absl::StrCat("messages[", messages.size(), "].role"), "is ", Quoted(one.role()),
              "; allowed are system, user, assistant and tool");
    messages.push_back({one.role(), one.content()});
  }
  return model.PrepareChat(messages, now, bounds, message.template_arguments());
}

absl::StatusOr<ModelSequence> ParsePrompt(const v1::GenerateRequest& message, const Model& model, absl::CivilSecond now,
                                          WorkBounds& bounds) {
  if (message.messages_size() > 0) return ParseMessages(message, model, now, bounds);
  REFUSE_IF(!message.template_arguments().empty(), "template_arguments", "is set; it goes with messages");
  const v1::Sequence& prompt = message.prompt();
  REFUSE_IF(!message.has_prompt(), "prompt", "is missing, and so are messages; give one of them");
  ASSIGN_OR_RETURN(const TruncateMode truncate, ParseTruncate(prompt.truncate(), "prompt.truncate"));
  REFUSE_IF(prompt.has_bias(), "prompt.bias", "is set; new tokens have none, so Generate takes none");
  REFUSE_IF(prompt.has_features(), "prompt.features", "is set; a language model takes tokens: give text or token_ids");
  REFUSE_IF(prompt.has_image(), "prompt.image", "is set; a language model takes tokens: give text or token_ids");
  REFUSE_IF(prompt.content_case() == v1::Sequence::CONTENT_NOT_SET, "prompt", "has no content; give text or token_ids");
  RETURN_IF_ERROR(FindPrompt(prompt, model, "prompt").status());  // a language model has none
  if (model.tokenizer() != nullptr && prompt.has_text()) {        // truncation keeps its template's tokens
    return Within("prompt", model.PrepareText(prompt.text(), nullptr, truncate, bounds));
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                   ParseTokens(prompt, model, "prompt", truncate == TruncateMode::kRefuse, bounds));
  return Within("prompt", model.Prepare(std::move(tokens), truncate, prompt.has_text() ? "text" : "token_ids"));
}

// Of the parts that Predict has too, what a generation cannot do; and its length.
absl::Status CheckExtent(const v1::GenerateRequest& message, const RequestLimits& limits) {
  const v1::Ensemble& ensemble = message.ensemble();
  REFUSE_IF(message.budget().allow_degraded(), "budget.allow_degraded",
            "is set; Generate uses all samples for every token");
  REFUSE_IF(message.budget().fit_deadline(), "budget.fit_deadline",
            "is set; Generate uses all samples for every token");
  REFUSE_IF(ensemble.tolerance() != 0.0, "ensemble.tolerance", "is ", ensemble.tolerance(),
            "; Generate uses all samples for every token");
  REFUSE_IF(ensemble.first_sample() != 0, "ensemble.first_sample", "is ", ensemble.first_sample(),
            "; a part of an ensemble cannot tell which token comes next");
  REFUSE_IF(message.max_new_tokens() == 0 || message.max_new_tokens() > limits.max_new_tokens, "max_new_tokens", "is ",
            message.max_new_tokens(), "; allowed are 1 to ", limits.max_new_tokens);
  return absl::OkStatus();
}

void SetSampling(const v1::GenerateRequest& message, const ModelConfig& config, GenerationOptions& options) {
  options.max_new_tokens = message.max_new_tokens();
  options.temperature = message.temperature();
  options.top_k = message.top_k() >= static_cast<uint32_t>(config.vocab_size) ? 0 : message.top_k();
  options.top_p = message.top_p();
  options.min_p = message.min_p();
  options.presence_penalty = message.presence_penalty();
  options.frequency_penalty = message.frequency_penalty();
  if (message.has_repetition_penalty()) options.repetition_penalty = message.repetition_penalty();
  options.alternatives = message.alternatives();
  options.stop.assign(message.stop().begin(), message.stop().end());
}

bool HasPenalties(const GenerationOptions& options) {
  return options.presence_penalty != 0.0 || options.frequency_penalty != 0.0 || options.repetition_penalty != 1.0;
}

void SetCap(const v1::Budget& budget, const Profile& limits, GenerationOptions& options) {
  if (budget.has_max_edges()) options.max_edges = budget.max_edges();
  if (budget.has_max_density()) options.max_density = budget.max_density();
  if (limits.max_edges > 0) options.max_edges = std::min(options.max_edges, limits.max_edges);
  if (limits.max_density > 0.0 && (options.max_density == 0.0 || limits.max_density < options.max_density)) {
    options.max_density = limits.max_density;
  }
}

absl::StatusOr<Overflow> ParseOverflow(v1::Overflow overflow) {
  REFUSE_IF(!v1::Overflow_IsValid(overflow), "overflow", "is ", static_cast<int>(overflow),
            "; allowed are SLIDE, HALVE and STOP");
  return overflow == v1::SLIDE ? Overflow::kSlide : overflow == v1::HALVE ? Overflow::kHalve : Overflow::kStop;
}

}  // namespace

absl::Status CheckSampling(const v1::GenerateRequest& message) {
  REFUSE_IF(!(message.temperature() >= 0.0) || std::isinf(message.temperature()), "temperature", "is ",
            message.temperature(), "; allowed are finite numbers, 0 (the most probable token) and more");
  REFUSE_IF(!(message.top_p() >= 0.0 && message.top_p() <= 1.0), "top_p", "is ", message.top_p(),
            "; allowed are 0 (off) to 1");
  REFUSE_IF(!(message.min_p() >= 0.0 && message.min_p() <= 1.0), "min_p", "is ", message.min_p(),
            "; allowed are 0 (off) to 1");
  REFUSE_IF(!(std::abs(message.presence_penalty()) <= kMaxPenalty), "presence_penalty", "is ",
            message.presence_penalty(), "; allowed are -2 to 2, and 0 is off");
  REFUSE_IF(!(std::abs(message.frequency_penalty()) <= kMaxPenalty), "frequency_penalty", "is ",
            message.frequency_penalty(), "; allowed are -2 to 2, and 0 is off");
  const double repetition = message.has_repetition_penalty() ? message.repetition_penalty() : 1.0;
  REFUSE_IF(!(repetition > 0.0 && repetition <= kMaxRepetitionPenalty), "repetition_penalty", "is ", repetition,
            "; allowed are numbers above 0 up to 100, and 1 is off");
  REFUSE_IF(message.alternatives() > kMaxAlternatives, "alternatives", "is ", message.alternatives(),
            "; allowed are 0 to ", kMaxAlternatives);
  REFUSE_IF(message.stop_size() > kMaxStops, "stop", "has ", message.stop_size(), " strings; allowed are at most ",
            kMaxStops);
  for (int i = 0; i < message.stop_size(); ++i) {
    const size_t bytes = message.stop(i).size();
    REFUSE_IF(bytes < 1 || bytes > kMaxStopBytes, absl::StrCat("stop[", i, "]"), "has ", bytes,
              " bytes; allowed are 1 to ", kMaxStopBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Work> Validate(const v1::GenerateRequest& message, const Model& model, const Profiles& profiles,
                              const RequestLimits& limits, const CallTerms& terms, WorkBounds& bounds) {
  const ModelConfig& config = model.config();
  REFUSE_IF(config.task != ModelTask::kCausalLm, "model", "is ", Quoted(message.model()), ", which does ",
            ModelTaskName(config.task), "; Generate needs one that does causal-lm");
  Work work;
  GenerationWork& generation = work.generation.emplace();
  GenerationOptions& options = generation.options;
  RETURN_IF_ERROR(ValidateCommon(message, model, profiles, limits, terms, work, options));
  RETURN_IF_ERROR(CheckExtent(message, limits));
  RETURN_IF_ERROR(CheckSampling(message));
  REFUSE_IF(message.stop_size() > 0 && model.config().tokenizer.kind == TokenizerKind::kNone, "stop",
            "is set; this model has no tokenizer, so there is no text to find it in");
  ASSIGN_OR_RETURN(options.overflow, ParseOverflow(message.overflow()));
  ASSIGN_OR_RETURN(generation.prompt, ParsePrompt(message, model, terms.local_time, bounds));

  SetSampling(message, config, options);
  SetCap(work.settings->budget(), profiles.limits, options);

  generation.cache_bytes = CacheBytesOf(model, generation.prompt, options);
  REFUSE_IF(generation.cache_bytes.longest > limits.max_cache_bytes, "ensemble.samples", "is ", options.samples,
            ", whose keys and values would take up to ", generation.cache_bytes.longest,
            " bytes; the server holds at most ", limits.max_cache_bytes);
  work.tokens = static_cast<uint64_t>(generation.prompt.valid());
  work.cost = static_cast<uint64_t>(generation.prompt.length());
  work.held_bytes = kHeldBytes + 2 * BytesOf(generation.prompt);  // it is copied when it starts
  work.held_bytes += kAlternativeBytes * options.alternatives;
  if (HasPenalties(options)) work.held_bytes += kSeenBytes * (work.tokens + options.max_new_tokens);
  return work;
}

}  // namespace edgewise::server
