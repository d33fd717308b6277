// The model as a decoder that its backend may run in one call (kernels/decoder.h).
#ifndef EDGEWISE_MODEL_CHECKPOINT_DECODER_H_
#define EDGEWISE_MODEL_CHECKPOINT_DECODER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/weights.h"
#include "model/config/config.h"

namespace edgewise {

// The prepared decoder, of all pairs, or of the windows of a layer that is dense; null: the backend does not take its
// shape, or it is no decoder. `weights` must outlive it. Errors: those of the backend.
absl::StatusOr<std::unique_ptr<PreparedDecoder>> PrepareDecoder(const ModelConfig& config, const ModelWeights& weights,
                                                                Backend& backend);

// AllPairs::reach of a layer of it.
int32_t ReachOfDecoder(const ModelConfig& config, int32_t layer);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_DECODER_H_
