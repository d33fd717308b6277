// The Open Inference Protocol as JSON, with the binary form of tensors. Any thread.
#ifndef EDGEWISE_SERVER_OIP_JSON_H_
#define EDGEWISE_SERVER_OIP_JSON_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "oip/v2/open_inference.pb.h"
#include "server/base/memory.h"
#include "server/http/json_out.h"
#include "server/http/message.h"
#include "server/oip/tensors.h"

namespace edgewise::server {

// An infer call out of a body.
struct InferBody {
  inference::ModelInferRequest message;  // with contents where the JSON has data
  std::vector<InputTensor> tensors;      // of `message`; their raw elements are in the body
  bool binary = false;                   // outputs are in binary form, unless they say otherwise
  std::vector<bool> binary_outputs;      // of message.outputs
};

// `json_length`: the field of the head, which says where binary data begins; empty: there is none. INVALID_ARGUMENT
// with the field. `memory` grows by what is made of the body, before it is made.
absl::Status ReadInferBody(const std::string& body, const std::string& json_length, MemoryHold& memory,
                           InferBody& read);

// The answer to `body`, whose bytes are `answer`. The error is that of `bounds`.
absl::StatusOr<HttpAnswer> WriteInferAnswer(const InferBody& body, const inference::ModelInferResponse& answer,
                                            WorkBounds& bounds);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_JSON_H_
