// Which tensors a configuration wants, and whether a file has them.
#ifndef EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
#define EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"

namespace edgewise {

// Name and shape of every tensor that the configuration wants, in the order of docs/model-format.md. `block_matrix` is
// optional and not part of it.
std::vector<std::pair<std::string, std::vector<int64_t>>> ExpectedTensors(const ModelConfig& config);

// "layers.3."
std::string LayerPrefix(size_t layer);
// Whether layer weights `layer` have a membership network (sbm), or block scores (learned block patterns).
bool UsesMemberships(const ModelConfig& config, size_t layer);
bool UsesBlockScores(const ModelConfig& config, size_t layer);

// Names, shapes and dtypes, before any data is read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file);

// Every number is finite; after the data has been read. INVALID_ARGUMENT: the message names the tensor.
absl::Status CheckFinite(const SafetensorsFile& file);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_TENSOR_CHECKS_H_
