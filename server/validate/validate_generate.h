// A GenerateRequest from outside becomes a checked GenerationWork, or INVALID_ARGUMENT that names the field, what was
// found and what is allowed. Nothing is computed. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_VALIDATE_GENERATE_H_
#define EDGEWISE_SERVER_VALIDATE_VALIDATE_GENERATE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/observe/metrics.h"
#include "server/options.h"
#include "server/task.h"

namespace edgewise::server {

struct ParsedGeneration {
  std::unique_ptr<GenerationWork> work;  // without its functions
  BudgetKind budget = BudgetKind::kNone;
  uint64_t seed = 0;
  uint64_t tokens = 0;  // valid tokens of the prompt
  uint64_t cost = 0;    // its positions, pads too
  uint32_t priority = 0;
  uint32_t truncated_tokens = 0;
};

// Everything but model name, version and request_id. Whether a row can keep its budget is for Generation::Create.
absl::StatusOr<ParsedGeneration> ParseGeneration(const v1::GenerateRequest& request, const Model& model,
                                                 const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_VALIDATE_GENERATE_H_
