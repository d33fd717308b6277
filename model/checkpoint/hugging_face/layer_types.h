// Which layers of a Hugging Face model attend in windows.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_LAYER_TYPES_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_LAYER_TYPES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/json_object.h"

namespace edgewise::hugging_face {

// [layers] Reads layer_types: true where a layer is sliding_attention, false where it is full_attention. Nothing: the
// field is not there, or it is wrong, and then object.Fail has the error.
std::optional<std::vector<bool>> ReadLayerTypes(JsonObject& object, int32_t layers);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_LAYER_TYPES_H_
