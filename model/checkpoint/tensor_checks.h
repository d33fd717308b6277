// The tensors of a configuration, and whether a checkpoint has exactly them.
#ifndef EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
#define EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/kinds/kind.h"

namespace edgewise {

// Name and shape of every tensor that the configuration wants or allows, in the order of docs/model-format.md.
std::vector<TensorShape> ExpectedTensors(const ModelConfig& config);

// "layers.3."
std::string LayerPrefix(size_t layer);

// Checks names, shapes and dtypes, before any data is read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file);

// Checks that every number is finite, after ReadData. INVALID_ARGUMENT: the message names the tensor and the element.
absl::Status CheckFinite(const SafetensorsFile& file);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
