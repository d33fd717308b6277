// A GenerateRequest becomes a task with checked generation options, or an error. Nothing is computed. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_GENERATE_H_
#define EDGEWISE_SERVER_VALIDATE_GENERATE_H_

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/options.h"
#include "server/validate/common.h"

namespace edgewise::server {

// Checks everything but the model's name, the version, request_id and whether each row can keep its budget
// (Generation::Create). INVALID_ARGUMENT with the field, the value found and the values allowed.
absl::StatusOr<ParsedRequest> ParseGenerate(const v1::GenerateRequest& request, const Model& model,
                                            const RequestLimits& limits);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_GENERATE_H_
