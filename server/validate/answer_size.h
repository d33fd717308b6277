// A bound of the size of an answer to Predict, before anything is computed.
#ifndef EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_
#define EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_

#include "absl/status/status.h"
#include "model/model.h"
#include "server/base/options.h"
#include "server/request/request.h"

namespace edgewise::server {

// Sets work.answer_bytes and work.held_bytes. RESOURCE_EXHAUSTED: the answer may exceed limits.max_response_bytes.
// INVALID_ARGUMENT: a returned graph may have too many edges, or the results of the samples would take more than
// limits.max_result_bytes.
absl::Status CheckAnswerSize(Work& work, const Model& model, const RequestLimits& limits);

// Bytes of a checked sequence.
uint64_t BytesOf(const ModelSequence& sequence);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_ANSWER_SIZE_H_
