// A PredictRequest from outside becomes checked ModelInputs, or INVALID_ARGUMENT that names the field, what was found
// and what is allowed. Nothing is computed and nothing large is allocated before its size was checked. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_VALIDATE_H_
#define EDGEWISE_SERVER_VALIDATE_VALIDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/observe/metrics.h"
#include "server/options.h"

namespace edgewise::server {

// What the answer is to contain.
struct OutputSelection {
  bool logits = false;
  bool layer_stats = false;
  bool key_degrees = false;
  bool each_sample = false;
  bool graph = false;
  uint32_t top_k = 0;
};

struct ParsedRequest {
  std::vector<ModelInput> inputs;
  OutputSelection outputs;
  BudgetKind budget = BudgetKind::kNone;
  uint64_t seed = 0;
  uint64_t tokens = 0;  // valid tokens of all inputs
  uint64_t cost = 0;    // positions of all inputs, pads too, edges of given graphs and entries of biases
  uint32_t priority = 0;
};

// What can be checked without the model: its name, the version, request_id.
absl::Status CheckModelName(const std::string& name);
absl::Status CheckVersion(int64_t version);
absl::Status CheckRequestId(const std::string& id);

// The rest. Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED: the answer would be larger than limits.max_response_bytes, or
// a text has too many windows.
// `budget_refused` (may be null) is set when it is the edge budget that cannot be kept.
absl::StatusOr<ParsedRequest> ParseRequest(const v1::PredictRequest& request, const Model& model,
                                           const RequestLimits& limits, bool* budget_refused = nullptr);

// `text` in quotes, escaped, at most 64 characters of it: for messages.
std::string Quoted(const std::string& text);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_VALIDATE_H_
