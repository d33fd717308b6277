// Parts of requests that Predict and Generate share, from outside to checked. Errors: INVALID_ARGUMENT that names the
// field, what was found and what is allowed.
#ifndef EDGEWISE_SERVER_VALIDATE_VALIDATE_PARTS_H_
#define EDGEWISE_SERVER_VALIDATE_VALIDATE_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/observe/metrics.h"
#include "server/options.h"

namespace edgewise::server {

// A message of the model, "token_ids[3] is ..." or "text: ...", as one of the field that it stands in.
absl::Status Within(const std::string& parent, const absl::Status& status);

absl::Status CheckAttention(v1::AttentionMode attention);
absl::Status CheckPriority(uint32_t priority);
absl::Status CheckBudget(const v1::Budget& budget);
absl::Status CheckEnsemble(const v1::Ensemble& ensemble, const RequestLimits& limits);

BudgetKind KindOf(const v1::Budget& budget);
uint32_t PriorityOf(uint32_t priority);         // 0 is the default
uint64_t SeedOf(const v1::Ensemble& ensemble);  // drawn where there is none

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field);

// The ids of a sequence that has text or token_ids. `field`: "inputs[0].sequence".
absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field);

// One sequence of an input; of a text for causal-lm, its windows.
absl::StatusOr<std::vector<ModelSequence>> ParseSequence(const v1::Sequence& sequence, const Model& model,
                                                         uint32_t stride, const std::string& field);

// The attention of every layer.
absl::StatusOr<std::shared_ptr<const std::vector<AttentionConfig>>> ParseOverride(const v1::AttentionOverride& override,
                                                                                  v1::AttentionMode attention,
                                                                                  const Model& model);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_VALIDATE_PARTS_H_
