// Rotary positions as config.json of a Hugging Face folder gives them.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_

#include "base/json_object.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {

// Reads rope_parameters, or rope_scaling and rope_theta, into position_embedding and rotary. The rope types default,
// linear, llama3 and yarn are served; errors go to object.Fail. head_dim and max_position_embeddings have been read.
void ReadRotary(JsonObject& object, ModelConfig& config);

// The same of a model whose layers with windows have rotary positions of their own, in window_rotary: rope_parameters
// has an object for full_attention and one for sliding_attention; or rope_scaling is of both, and global_rope_theta and
// local_rope_theta have the two thetas.
void ReadRotaryOfTypes(JsonObject& object, ModelConfig& config);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_
