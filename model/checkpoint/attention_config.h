// The field `attention` of config.json.
#ifndef EDGEWISE_MODEL_CHECKPOINT_ATTENTION_CONFIG_H_
#define EDGEWISE_MODEL_CHECKPOINT_ATTENTION_CONFIG_H_

#include "model/checkpoint/config.h"
#include "model/checkpoint/json_object.h"

namespace edgewise {

// Fills config.attention, one entry per layer. Needs num_hidden_layers, tied_layers, causal and
// max_position_embeddings. What is wrong goes to object.Fail.
void ParseAttention(JsonObject& object, AttentionKinds kinds, ModelConfig& config);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CHECKPOINT_ATTENTION_CONFIG_H_
