// Attention kind ssa, and how a request puts it in the place of a model's own attention.
#ifndef EDGEWISE_MODEL_KINDS_SSA_H_
#define EDGEWISE_MODEL_KINDS_SSA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"

namespace edgewise {

// The attention of every layer of a request that asks for SSA on a model whose layers are dense or SSA. It replaces the
// model's: with `windows` the bias is local (`sigma`: one number, or those of the first and the last layer;
// one-dimensional), with `keep` there is none; 0: not given. The layers below the last `last_layers` are dense; 0: none
// is. INVALID_ARGUMENT: the message begins with the name of the argument and says what is allowed.
absl::StatusOr<std::vector<AttentionConfig>> OverrideAttention(const ModelConfig& config, const std::string& kind,
                                                               uint32_t windows, uint32_t keep,
                                                               const std::vector<double>& sigma, uint32_t last_layers);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_KINDS_SSA_H_
