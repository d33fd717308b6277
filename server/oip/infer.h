// One infer call of the Open Inference Protocol: its message becomes a request of ours, and the answer to that one the
// answer to the call. gRPC (service.h) and HTTP (routes.h) are both this. Any thread.
#ifndef EDGEWISE_SERVER_OIP_INFER_H_
#define EDGEWISE_SERVER_OIP_INFER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "oip/v2/open_inference.pb.h"
#include "server/base/memory.h"
#include "server/base/options.h"
#include "server/http/json_scalar.h"
#include "server/oip/model_tensors.h"
#include "server/oip/tensors.h"
#include "server/request/request.h"

namespace edgewise::server {

struct InferCall {
  v1::PredictRequest request;
  Clock::duration timeout = Clock::duration::max();  // from its arrival on
  std::vector<OutputTensorInfo> outputs;             // in the order of the answer
  std::string id;                                    // as the message says
  // Of each input: masked positions before its tokens. Empty: there are none.
  std::vector<uint64_t> begins, pair_begins;
  uint64_t columns = 0;  // of input_ids; 0: the inputs are no ids

  // `status`, with the names that this protocol has for our fields.
  absl::Status Named(const absl::Status& status) const;
  Time DeadlineOf(Time arrival, Time deadline) const {
    return timeout < deadline - arrival ? arrival + timeout : deadline;
  }
};

// Limits of reading a call.
struct InferBounds {
  MemoryHold& memory;                   // grows by what is made, before it is made
  uint64_t message_limit = UINT64_MAX;  // bytes of inputs, with copies of what they share
  std::function<absl::Status()> wanted = [] { return absl::OkStatus(); };  // whether somebody waits for the answer
};

// Makes `call.request` out of `message`, whose inputs are `tensors`, for this model; its name and version are not
// looked at. INVALID_ARGUMENT with the field that is wrong, by our name or this protocol's; RESOURCE_EXHAUSTED;
// between two inputs the error of `bounds.wanted`.
absl::Status ReadInfer(const Model& model, const RequestLimits& limits, const inference::ModelInferRequest& message,
                       std::span<const InputTensor> tensors, const InferBounds& bounds, InferCall& call);

// The answer: each output of `call` in raw_output_contents. Outputs of tokens stand at the columns of input_ids, and
// are as long as these or as the longest input; label_id is -1 and all else 0 or empty where a shorter one has no
// token. RESOURCE_EXHAUSTED: with that it has over `most_bytes`, or there is no memory. `memory` grows by its bytes.
absl::Status WriteInfer(const InferCall& call, const v1::PredictResponse& response, uint64_t most_bytes,
                        MemoryHold& memory, inference::ModelInferResponse& answer);

// Sets the field of `request`, or of `call`, that a parameter of a call is for. INVALID_ARGUMENT: there is none of this
// name, or another value is needed.
absl::Status SetInferParameter(const std::string& key, const inference::InferParameter& parameter,
                               const RequestLimits& limits, const InferBounds& bounds, InferCall& call);
// Its value; a text that is empty where it has none.
JsonScalar ScalarOf(const inference::InferParameter& parameter);
// The parameter that sets a field of a request; empty: none does.
std::string ParameterOf(const std::string& field);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_INFER_H_
