// The tensors of a configuration, and whether a checkpoint has exactly them.
#ifndef EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
#define EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/kinds/kind.h"

namespace edgewise {

// Name and shape of every tensor that the configuration wants or allows, in the order of docs/model-format.md.
std::vector<TensorShape> ExpectedTensors(const ModelConfig& config);

// "layers.3."
std::string LayerPrefix(size_t layer);

// Checks names, shapes and dtypes, before any data is read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file);

struct NamedTensor {
  std::vector<int64_t> shape;
  std::span<const float> values;  // row-major, on the host; owned by the file or whoever converted them
  std::string source;             // its name in the file
};
// The tensors of ExpectedTensors, those that are there, by their names in docs/model-format.md.
using NamedTensors = std::map<std::string, NamedTensor>;

// The F32 tensors of a file in our own format, after its ReadData; they live as long as the file.
NamedTensors TensorsOf(const SafetensorsFile& file);

// Checks that every number is finite. INVALID_ARGUMENT: the message names the tensor and the element.
absl::Status CheckFinite(const NamedTensors& tensors);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
