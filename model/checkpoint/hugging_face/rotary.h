// Rotary positions as config.json of a Hugging Face folder gives them.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_

#include "model/checkpoint/config.h"
#include "model/checkpoint/json_object.h"

namespace edgewise::hugging_face {

// Reads rope_parameters, or rope_scaling and rope_theta, into position_embedding, rotary_angles and rotary_factor. The
// rope types default, linear, llama3 and yarn are served; errors go to object.Fail. head_dim and
// max_position_embeddings have been read.
void ReadRotary(JsonObject& object, ModelConfig& config);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_ROTARY_H_
