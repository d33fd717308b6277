// Checks that Predict and Generate share. Errors: INVALID_ARGUMENT with the field (text/field_error.h), the value found
// and the values allowed. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_COMMON_H_
#define EDGEWISE_SERVER_VALIDATE_COMMON_H_

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
#include "server/task.h"

namespace edgewise::server {

// A valid request.
struct ParsedRequest {
  TaskPtr task;  // ready for the queue but for the model, the deadline, the cancellation and the functions
  BudgetKind budget = BudgetKind::kNone;
  uint64_t seed = 0;  // drawn where the request has none
};

// The fields that both requests have and that depend on nothing else. The task of the result has its priority only.
absl::StatusOr<ParsedRequest> ParseCommon(v1::AttentionMode attention, uint32_t priority, const v1::Budget& budget,
                                          const v1::Ensemble& ensemble, const RequestLimits& limits);

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field);

// The token ids of a sequence that has text or token_ids. `field`: "inputs[0].sequence".
absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field);

// The attention of every layer under `override`.
absl::StatusOr<std::shared_ptr<const std::vector<AttentionConfig>>> ParseOverride(const v1::AttentionOverride& override,
                                                                                  v1::AttentionMode attention,
                                                                                  const Model& model);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_COMMON_H_
