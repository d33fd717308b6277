// A PredictRequest becomes a task with checked inputs, or an error. Nothing is computed, and nothing large is allocated
// before its size is checked. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_PREDICT_H_
#define EDGEWISE_SERVER_VALIDATE_PREDICT_H_

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/options.h"
#include "server/validate/answer_size.h"
#include "server/validate/common.h"

namespace edgewise::server {

struct ParsedPredict : ParsedRequest {
  OutputSelection outputs;
};

// Checks everything but the model's name, the version and request_id. INVALID_ARGUMENT with the field, the value found
// and the values allowed. RESOURCE_EXHAUSTED: a text has too many windows, or the answer would be larger than
// limits.max_response_bytes.
absl::StatusOr<ParsedPredict> ParsePredict(const v1::PredictRequest& request, const Model& model,
                                           const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_PREDICT_H_
