#include "server/validate/validate_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/kinds/ssa.h"
#include "server/status_details.h"
#include "server/task.h"

namespace edgewise::server {

absl::Status Within(const std::string& parent, const absl::Status& status) {
  const std::string message(status.message());
  if (!absl::IsInvalidArgument(status)) return absl::Status(status.code(), absl::StrCat(parent, ": ", message));
  const std::string part = message.substr(0, message.find_first_of(": "));
  return InvalidFieldMessage(absl::StrCat(parent, ".", part), absl::StrCat(parent, ".", message));
}

absl::Status CheckAttention(v1::AttentionMode attention) {
  if (attention == v1::MODEL_DEFAULT || attention == v1::DENSE) return absl::OkStatus();
  return InvalidField("attention",
                      absl::StrCat("is ", static_cast<int>(attention), "; allowed are MODEL_DEFAULT and DENSE"));
}

absl::Status CheckPriority(uint32_t priority) {
  if (priority <= kPriorityLevels) return absl::OkStatus();
  return InvalidField("priority", absl::StrCat("is ", priority, "; allowed are 0 (default) to ", kPriorityLevels));
}

absl::Status CheckBudget(const v1::Budget& budget) {
  if (budget.cap_case() == v1::Budget::kMaxEdges && budget.max_edges() == 0) {
    return InvalidField("budget.max_edges", "is 0; allowed are 1 and more (leave it out for no cap)");
  }
  if (budget.cap_case() == v1::Budget::kMaxDensity && !(budget.max_density() > 0.0 && budget.max_density() <= 1.0)) {
    return InvalidField("budget.max_density", absl::StrCat("is ", budget.max_density(), "; allowed is (0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckEnsemble(const v1::Ensemble& ensemble, const RequestLimits& limits) {
  const uint32_t samples = std::max<uint32_t>(1, ensemble.samples());
  if (samples > limits.max_samples) {
    return InvalidField("ensemble.samples",
                        absl::StrCat("is ", samples, "; the server takes at most ", limits.max_samples));
  }
  if (!(ensemble.tolerance() >= 0.0) || std::isinf(ensemble.tolerance())) {
    return InvalidField("ensemble.tolerance",
                        absl::StrCat("is ", ensemble.tolerance(), "; allowed are finite numbers, 0 and more"));
  }
  if (ensemble.tolerance() > 0.0 && ensemble.first_sample() != 0) {
    return InvalidField("ensemble.tolerance",
                        absl::StrCat("is ", ensemble.tolerance(), " with first_sample ", ensemble.first_sample(),
                                     "; a part of an ensemble cannot stop early"));
  }
  if (uint64_t{ensemble.first_sample()} + samples > uint64_t{std::numeric_limits<uint32_t>::max()} + 1) {
    return InvalidField("ensemble.first_sample", absl::StrCat("is ", ensemble.first_sample(), " with ", samples,
                                                              " samples; the last sample may be 4294967295"));
  }
  return absl::OkStatus();
}

BudgetKind KindOf(const v1::Budget& budget) {
  switch (budget.cap_case()) {
    case v1::Budget::kMaxEdges:
      return BudgetKind::kEdges;
    case v1::Budget::kMaxDensity:
      return BudgetKind::kDensity;
    default:
      return BudgetKind::kNone;
  }
}

uint32_t PriorityOf(uint32_t priority) { return priority == 0 ? kDefaultPriority : priority; }

uint64_t SeedOf(const v1::Ensemble& ensemble) {
  if (ensemble.has_seed()) return ensemble.seed();
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field) {
  switch (truncate) {
    case v1::REFUSE:
      return TruncateMode::kRefuse;
    case v1::HEAD:
      return TruncateMode::kHead;
    case v1::TAIL:
      return TruncateMode::kTail;
    default:
      return InvalidField(field,
                          absl::StrCat("is ", static_cast<int>(truncate), "; allowed are REFUSE, HEAD and TAIL"));
  }
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field) {
  if (!sequence.has_text()) {
    if (sequence.token_ids().values().empty()) {
      return InvalidField(field + ".token_ids", "is empty; at least one token is needed");
    }
    return std::vector<int32_t>(sequence.token_ids().values().begin(), sequence.token_ids().values().end());
  }
  if (model.config().feature_size > 0) {
    return InvalidFieldMessage(field + ".text", field + ".text: this model takes rows of features; send features");
  }
  absl::StatusOr<std::vector<int32_t>> tokens = model.Tokenize(sequence.text());
  if (!tokens.ok()) return Within(field, tokens.status());
  if (tokens->empty()) return InvalidField(field + ".text", "has no tokens; at least one is needed");
  return tokens;
}

namespace {

// The sequence, or its windows, without its bias.
absl::StatusOr<std::vector<ModelSequence>> PrepareContent(const v1::Sequence& sequence, const Model& model,
                                                          uint32_t stride, TruncateMode truncate,
                                                          const std::string& field) {
  if (sequence.content_case() == v1::Sequence::CONTENT_NOT_SET) {
    return InvalidField(field, "has no content; give text, token_ids or features");
  }
  std::vector<ModelSequence> prepared(1);
  if (sequence.has_features()) {
    const v1::Features& features = sequence.features();
    absl::StatusOr<ModelSequence> rows =
        model.PrepareFeatures(features.rows(), features.columns(),
                              std::vector<float>(features.values().begin(), features.values().end()), truncate);
    if (!rows.ok()) return Within(field, rows.status());
    prepared[0] = *std::move(rows);
    return prepared;
  }
  absl::StatusOr<std::vector<int32_t>> tokens = ParseTokens(sequence, model, field);
  if (!tokens.ok()) return tokens.status();
  if (model.config().task == ModelTask::kCausalLm) {
    absl::StatusOr<std::vector<ModelSequence>> windows = model.PrepareWindows(*std::move(tokens), truncate, stride);
    if (windows.ok()) return windows;
    return Within(windows.status().message().substr(0, 6) == "stride" ? "outputs" : field, windows.status());
  }
  absl::StatusOr<ModelSequence> one = model.Prepare(*std::move(tokens), truncate);
  if (!one.ok()) return Within(field, one.status());
  prepared[0] = *std::move(one);
  return prepared;
}

}  // namespace

absl::StatusOr<std::vector<ModelSequence>> ParseSequence(const v1::Sequence& sequence, const Model& model,
                                                         uint32_t stride, const std::string& field) {
  absl::StatusOr<TruncateMode> truncate = ParseTruncate(sequence.truncate(), field + ".truncate");
  if (!truncate.ok()) return truncate.status();
  absl::StatusOr<std::vector<ModelSequence>> prepared = PrepareContent(sequence, model, stride, *truncate, field);
  if (!prepared.ok() || !sequence.has_bias()) return prepared;
  const v1::PairwiseBias& bias = sequence.bias();
  if (bias.values().empty() && bias.buckets().empty()) {
    return InvalidField(field + ".bias", "is empty; give values or buckets, or leave it out");
  }
  if (prepared->size() > 1) {
    return InvalidField(field + ".bias", absl::StrCat("is given for a text that is scored in ", prepared->size(),
                                                      " windows; it goes with texts that fit the context"));
  }
  ModelSequence& one = prepared->front();
  one.bias_values.assign(bias.values().begin(), bias.values().end());
  one.bias_buckets.assign(bias.buckets().begin(), bias.buckets().end());
  if (absl::Status checked = model.CheckBias(one); !checked.ok()) return Within(field, checked);
  return prepared;
}

absl::StatusOr<std::shared_ptr<const std::vector<AttentionConfig>>> ParseOverride(const v1::AttentionOverride& override,
                                                                                  v1::AttentionMode attention,
                                                                                  const Model& model) {
  if (attention == v1::DENSE) return InvalidField("override", "cannot go with attention DENSE: choose one of them");
  absl::StatusOr<std::vector<AttentionConfig>> layers =
      OverrideAttention(model.config(), override.kind(), override.windows(), override.keep(),
                        std::vector<double>(override.sigma().begin(), override.sigma().end()), override.last_layers());
  if (!layers.ok()) return Within("override", layers.status());
  return std::make_shared<const std::vector<AttentionConfig>>(*std::move(layers));
}

}  // namespace edgewise::server
