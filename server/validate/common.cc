#include "server/validate/common.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "model/kinds/ssa.h"
#include "text/field_error.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

absl::Status CheckEnsemble(const v1::Ensemble& ensemble, const RequestLimits& limits) {
  const uint32_t samples = std::max<uint32_t>(1, ensemble.samples());
  const double tolerance = ensemble.tolerance();
  if (samples > limits.max_samples) {
    return FieldError("ensemble.samples",
                      absl::StrCat("is ", samples, "; the server takes at most ", limits.max_samples));
  }
  if (!(tolerance >= 0.0) || std::isinf(tolerance)) {
    return FieldError("ensemble.tolerance", absl::StrCat("is ", tolerance, "; allowed are finite numbers, 0 and more"));
  }
  if (tolerance > 0.0 && ensemble.first_sample() != 0) {
    return FieldError("ensemble.tolerance",
                      absl::StrCat("is ", tolerance, " with first_sample ", ensemble.first_sample(),
                                   "; a part of an ensemble cannot stop early"));
  }
  if (uint64_t{ensemble.first_sample()} + samples > uint64_t{std::numeric_limits<uint32_t>::max()} + 1) {
    return FieldError("ensemble.first_sample", absl::StrCat("is ", ensemble.first_sample(), " with ", samples,
                                                            " samples; the last sample may be 4294967295"));
  }
  return absl::OkStatus();
}

uint64_t RandomSeed() {
  static thread_local absl::BitGen generator;  // seeded from the operating system when a thread first asks
  return absl::Uniform<uint64_t>(generator);
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseCommon(v1::AttentionMode attention, uint32_t priority, const v1::Budget& budget,
                                          const v1::Ensemble& ensemble, const RequestLimits& limits) {
  if (attention != v1::MODEL_DEFAULT && attention != v1::DENSE) {
    return FieldError("attention",
                      absl::StrCat("is ", static_cast<int>(attention), "; allowed are MODEL_DEFAULT and DENSE"));
  }
  if (priority > kPriorityLevels) {
    return FieldError("priority", absl::StrCat("is ", priority, "; allowed are 0 (default) to ", kPriorityLevels));
  }
  if (budget.has_max_edges() && budget.max_edges() == 0) {
    return FieldError("budget.max_edges", "is 0; allowed are 1 and more (leave it out for no cap)");
  }
  if (budget.has_max_density() && !(budget.max_density() > 0.0 && budget.max_density() <= 1.0)) {
    return FieldError("budget.max_density", absl::StrCat("is ", budget.max_density(), "; allowed is (0, 1]"));
  }
  RETURN_IF_ERROR(CheckEnsemble(ensemble, limits));
  ParsedRequest parsed;
  parsed.task = std::make_unique<Task>();
  parsed.task->priority = priority == 0 ? kDefaultPriority : priority;
  parsed.budget = budget.has_max_edges()     ? BudgetKind::kEdges
                  : budget.has_max_density() ? BudgetKind::kDensity
                                             : BudgetKind::kNone;
  parsed.seed = ensemble.has_seed() ? ensemble.seed() : RandomSeed();
  return parsed;
}

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field) {
  if (truncate == v1::REFUSE) return TruncateMode::kRefuse;
  if (truncate == v1::HEAD) return TruncateMode::kHead;
  if (truncate == v1::TAIL) return TruncateMode::kTail;
  return FieldError(field, absl::StrCat("is ", static_cast<int>(truncate), "; allowed are REFUSE, HEAD and TAIL"));
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field) {
  if (!sequence.has_text()) {
    const auto& ids = sequence.token_ids().values();
    if (ids.empty()) return FieldError(field + ".token_ids", "is empty; at least one token is needed");
    return std::vector<int32_t>(ids.begin(), ids.end());
  }
  if (model.config().feature_size > 0) {
    return FieldError(field + ".text", ": this model takes rows of features; send features");
  }
  absl::StatusOr<std::vector<int32_t>> tokens = model.Tokenize(sequence.text());
  if (!tokens.ok()) return Within(field, tokens.status());
  if (tokens->empty()) return FieldError(field + ".text", "has no tokens; at least one is needed");
  return tokens;
}

absl::StatusOr<std::shared_ptr<const std::vector<AttentionConfig>>> ParseOverride(const v1::AttentionOverride& override,
                                                                                  v1::AttentionMode attention,
                                                                                  const Model& model) {
  if (attention == v1::DENSE) return FieldError("override", "cannot go with attention DENSE: choose one of them");
  absl::StatusOr<std::vector<AttentionConfig>> layers =
      OverrideAttention(model.config(), override.kind(), override.windows(), override.keep(),
                        std::vector<double>(override.sigma().begin(), override.sigma().end()), override.last_layers());
  if (!layers.ok()) return Within("override", layers.status());
  return std::make_shared<const std::vector<AttentionConfig>>(*std::move(layers));
}

}  // namespace edgewise::server
