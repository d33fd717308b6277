// The beginning of an infer call, of both fronts.
#ifndef EDGEWISE_SERVER_OIP_ADMIT_H_
#define EDGEWISE_SERVER_OIP_ADMIT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/oip/infer.h"
#include "server/request/call.h"
#include "server/wire/call_parts.h"

namespace edgewise::server {

// ReadInfer for the version that `message` names, which `infer.request` then has; with an empty one the latest. Errors:
// those of `tensors`, Repository::Resolve and ReadInfer, with this protocol's names. `ticket`: who waits, and until
// when; its call gets the name of the model. Any thread.
absl::Status AdmitInfer(CallParts& parts, const inference::ModelInferRequest& message,
                        const absl::StatusOr<std::vector<InputTensor>>& tensors, const Ticket& ticket,
                        MemoryHold& memory, InferCall& infer);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_ADMIT_H_
