// The contents of an answer to Predict, and a bound of its size before anything is computed.
#ifndef EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_
#define EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/model.h"
#include "server/options.h"

namespace edgewise::server {

// The parts of an answer besides predictions and edges: OutputOptions of the request.
struct OutputSelection {
  bool logits = false;
  bool layer_stats = false;
  bool key_degrees = false;
  bool each_sample = false;
  bool graph = false;
  uint32_t top_k = 0;
};

// RESOURCE_EXHAUSTED: the answer may exceed limits.max_response_bytes. INVALID_ARGUMENT: a returned graph may have too
// many edges, or the results of the samples would take more than limits.max_result_bytes.
absl::Status CheckAnswerSize(const std::vector<ModelInput>& inputs, const OutputSelection& outputs, const Model& model,
                             const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_
