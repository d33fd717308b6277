// The Open Inference Protocol as JSON, with the binary form of tensors. Any thread.
#ifndef EDGEWISE_SERVER_OIP_JSON_H_
#define EDGEWISE_SERVER_OIP_JSON_H_

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
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

// The answer to `body`, whose bytes are `answer`.
HttpAnswer WriteInferAnswer(const InferBody& body, const inference::ModelInferResponse& answer);

// A message by the names of its fields; 64-bit integers are numbers, fields that are not set have their default.
void WriteMessage(const google::protobuf::Message& message, JsonOut& json);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_JSON_H_
