// The tensors that a model takes and gives in the Open Inference Protocol (docs/http.md has the table). Any thread.
#ifndef EDGEWISE_SERVER_OIP_MODEL_TENSORS_H_
#define EDGEWISE_SERVER_OIP_MODEL_TENSORS_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"
#include "oip/v2/open_inference.pb.h"

namespace edgewise::server {

struct InputTensorInfo {
  const char* name = nullptr;
  inference::DataType type = inference::TYPE_INVALID;
  std::vector<int64_t> shape;  // the batch first; -1: any size
  bool optional = false;       // another may take its place
};
std::vector<InputTensorInfo> InputsOf(const Model& model);

// An output is a field of the answer to each input, or of each of its tokens.
struct OutputTensorInfo {
  const char* name = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;
  bool of_edges = false;   // the field is one of Prediction.edges
  bool of_tokens = false;  // of Prediction.tokens
  bool of_masks = false;   // which are one for each mask, not for each token
  bool by_name = false;    // only where it is asked for
  int64_t columns = -1;    // of a list

  inference::DataType type() const;
  std::vector<int64_t> shape() const;  // the batch first; -1: any size
};
std::vector<OutputTensorInfo> OutputsOf(const Model& model);

// As tensors name it: "FP32".
const char* DatatypeName(inference::DataType type);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_MODEL_TENSORS_H_
