#include "server/validate/common.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_join.h"
#include "base/did_you_mean.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "model/kinds/kind.h"
#include "model/kinds/override.h"
#include "server/validate/settings.h"

namespace edgewise::server {
namespace {

constexpr size_t kMostPromptsShown = 20;

absl::Status ParseCap(const v1::Budget& budget, Work& work) {
  const double density = budget.max_density();
  REFUSE_IF(budget.has_max_edges() && budget.max_edges() == 0, "budget.max_edges",
            "is 0; allowed are 1 and more (leave it out for no cap)");
  REFUSE_IF(budget.has_max_density() && !(density > 0.0 && density <= 1.0), "budget.max_density", "is ", density,
            "; allowed is (0, 1]");
  if (budget.has_max_edges()) work.budget = BudgetKind::kEdges;
  if (budget.has_max_density()) work.budget = BudgetKind::kDensity;
  return absl::OkStatus();
}

// Sets which edges a cap keeps, in the draw and, where that matters, in the settings. All else of the draw is set.
absl::Status ParseKeep(v1::Keep asked, const Model& model, v1::Settings& settings, Draw& draw) {
  REFUSE_IF(!v1::Keep_IsValid(asked), "budget.keep", "is ", static_cast<int>(asked),
            "; allowed are KEEP_MODEL_DEFAULT, RANDOM and PROBABLE");
  const bool matters = model.CapRuleMatters(draw);
  const bool has_cap = settings.budget().has_max_edges() || settings.budget().has_max_density();
  if (asked != v1::KEEP_MODEL_DEFAULT) {
    REFUSE_IF(!matters, "budget.keep", "is ", v1::Keep_Name(asked), "; it is for attention sbm, and this request's is ",
              draw.dense ? "dense" : AttentionName(AttentionOf(model.config(), draw)));
    REFUSE_IF(!has_cap, "budget.keep", "is ", v1::Keep_Name(asked), " without a cap; set max_edges or max_density too");
  }
  if (!has_cap) settings.clear_budget();
  if (has_cap && !matters) settings.mutable_budget()->clear_keep();
  if (!has_cap || !matters) return absl::OkStatus();
  const v1::Keep keep = settings.budget().keep();
  draw.keep = keep == v1::KEEP_MODEL_DEFAULT ? model.config().budget_keep
              : keep == v1::PROBABLE         ? CapRule::kProbable
                                             : CapRule::kRandom;
  settings.mutable_budget()->set_keep(draw.keep == CapRule::kProbable ? v1::PROBABLE : v1::RANDOM);
  return absl::OkStatus();
}

absl::Status ParseEnsemble(const v1::Ensemble& ensemble, const v1::Settings& settings, const RequestLimits& limits,
                           Draw& draw) {
  const uint32_t samples = std::max<uint32_t>(1, settings.samples()), first = ensemble.first_sample();
  const double tolerance = settings.tolerance();
  REFUSE_IF(samples > limits.max_samples, "ensemble.samples", "is ", samples, "; the server takes at most ",
            limits.max_samples);
  REFUSE_IF(!(tolerance >= 0.0) || std::isinf(tolerance), "ensemble.tolerance", "is ", tolerance,
            "; allowed are finite numbers, 0 and more");
  REFUSE_IF(tolerance > 0.0 && first != 0, "ensemble.tolerance", "is ", tolerance, " with first_sample ", first,
            "; a part of an ensemble cannot stop early");
  REFUSE_IF(uint64_t{first} + samples > uint64_t{1} << 32, "ensemble.first_sample", "is ", first, " with ", samples,
            " samples; the last sample may be 4294967295");
  draw.seed = ensemble.seed();
  draw.first_sample = first;
  draw.samples = samples;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const std::vector<AttentionConfig>>> ParseOverride(const v1::AttentionOverride& message,
                                                                                  v1::AttentionMode attention,
                                                                                  const Model& model) {
  REFUSE_IF(attention == v1::DENSE, "override", "cannot go with attention DENSE: choose one of them");
  AttentionOverride override{.kind = message.kind(),
                             .windows = message.windows(),
                             .window_tokens = message.window_tokens(),
                             .keep = message.keep(),
                             .sigma = {message.sigma().begin(), message.sigma().end()},
                             .block_size = message.block_size(),
                             .pattern = message.pattern(),
                             .stride = message.stride(),
                             .last_layers = message.last_layers()};
  if (message.has_width()) override.width = message.width();
  if (message.has_threshold()) override.threshold = message.threshold();
  ASSIGN_OR_RETURN(std::vector<AttentionConfig> layers,
                   Within("override", OverrideAttention(model.config(), override)));
  return std::make_shared<const std::vector<AttentionConfig>>(std::move(layers));
}

// Below 2^53: clients whose numbers are all doubles read it as it is, and can send it back.
uint64_t RandomSeed() {
  static thread_local absl::BitGen generator;  // seeded from the operating system when a thread first asks
  return absl::Uniform<uint64_t>(generator, 0, uint64_t{1} << 53);
}

}  // namespace

template <typename Message>
absl::Status ValidateCommon(const Message& message, const Model& model, const Profiles& profiles,
                            const RequestLimits& limits, const CallTerms& terms, Work& work, Draw& draw) {
  REFUSE_IF(message.attention() != v1::MODEL_DEFAULT && message.attention() != v1::DENSE, "attention", "is ",
            static_cast<int>(message.attention()), "; allowed are MODEL_DEFAULT and DENSE");
  REFUSE_IF(message.priority() > kPriorityLevels, "priority", "is ", message.priority(),
            "; allowed are 0 (default) to ", kPriorityLevels);
  const std::string& profile = terms.profile ? *terms.profile : message.profile();
  ASSIGN_OR_RETURN(v1::Settings settings, SettingsOf(message, profile, profiles));
  RETURN_IF_ERROR(ParseCap(settings.budget(), work));
  RETURN_IF_ERROR(ParseEnsemble(message.ensemble(), settings, limits, draw));
  if (settings.has_override()) {
    ASSIGN_OR_RETURN(draw.attention, ParseOverride(settings.override(), message.attention(), model));
  }
  draw.dense = message.attention() == v1::DENSE;
  RETURN_IF_ERROR(ParseKeep(message.budget().keep(), model, settings, draw));
  work.settings = std::make_shared<v1::Settings>(std::move(settings));
  if (!message.ensemble().has_seed()) draw.seed = RandomSeed();
  work.seed = draw.seed;
  draw.stopping = terms.stopping;
  return absl::OkStatus();
}
template absl::Status ValidateCommon(const v1::PredictRequest&, const Model&, const Profiles&, const RequestLimits&,
                                     const CallTerms&, Work&, Draw&);
template absl::Status ValidateCommon(const v1::GenerateRequest&, const Model&, const Profiles&, const RequestLimits&,
                                     const CallTerms&, Work&, Draw&);

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field) {
  REFUSE_IF(!v1::Truncate_IsValid(truncate), field, "is ", static_cast<int>(truncate),
            "; allowed are REFUSE, HEAD and TAIL");
  return truncate == v1::REFUSE ? TruncateMode::kRefuse
         : truncate == v1::HEAD ? TruncateMode::kHead
                                : TruncateMode::kTail;
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field, bool refuses, WorkBounds& bounds) {
  const auto& ids = sequence.token_ids().values();
  REFUSE_IF(!sequence.has_text() && ids.empty(), field + ".token_ids", "is empty; at least one token is needed");
  if (!sequence.has_text()) return std::vector<int32_t>(ids.begin(), ids.end());
  REFUSE_IF(model.config().feature_size > 0, field + ".text", ": this model takes rows of features; send features");
  const size_t most = refuses ? static_cast<size_t>(model.config().max_position_embeddings) : 0;
  absl::StatusOr<std::vector<int32_t>> tokens = model.Tokenize(sequence.text(), most, bounds);
  REFUSE_IF(tokens.ok() && tokens->empty(), field + ".text", "has no tokens; at least one is needed");
  return Within(field, std::move(tokens));
}

absl::StatusOr<const Prompt*> FindPrompt(const v1::Sequence& sequence, const Model& model, const std::string& field) {
  const ModelConfig& config = model.config();
  const bool names = sequence.has_prompt_name();
  const std::string& name = names ? sequence.prompt_name() : config.default_prompt;
  if (name.empty() || (!names && !sequence.has_text())) return nullptr;
  REFUSE_IF(config.prompts.empty(), field + ".prompt_name", "is ", Quoted(name), "; the model has no prompts");
  REFUSE_IF(!sequence.has_text(), field + ".prompt_name", "is ", Quoted(name), "; a prompt goes before a text");
  const auto found = config.prompts.find(name);
  if (found != config.prompts.end()) return &found->second;
  std::set<std::string> known;
  std::vector<std::string> quoted;
  for (const auto& [one, prompt] : config.prompts) {
    known.insert(one);
    if (quoted.size() < kMostPromptsShown) quoted.push_back(Quoted(one));
  }
  return FieldError(field + ".prompt_name", absl::StrCat("is ", Quoted(name), "; the model has ",
                                                         absl::StrJoin(quoted, ", "), DidYouMean(name, known)));
}

}  // namespace edgewise::server
