// The answers of ListModels and GetModel, for every front.
#ifndef EDGEWISE_SERVER_WIRE_MODEL_LIST_H_
#define EDGEWISE_SERVER_WIRE_MODEL_LIST_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// Any thread.
void FillModels(const CallParts& parts, v1::ListModelsResponse& response);
// In any state: the version asked for, else (0) the highest that serves, else the highest. NOT_FOUND: there is none.
absl::Status FillModel(const CallParts& parts, const std::string& name, int64_t version,
                       v1::GetModelResponse& response);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_MODEL_LIST_H_
