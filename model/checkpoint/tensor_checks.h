// Which tensors a configuration wants, and whether a file has them.
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

// Every tensor that the configuration allows, in the order of docs/model-format.md.
std::vector<TensorShape> ExpectedTensors(const ModelConfig& config);

// "layers.3."
std::string LayerPrefix(size_t layer);

// Names, shapes and dtypes, before any data is read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file);

// Every number is finite; after the data has been read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckFinite(const SafetensorsFile& file);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
