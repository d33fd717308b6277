// The settings of a folder for the images that its model takes.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_IMAGE_FILES_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_IMAGE_FILES_H_

#include "absl/status/status.h"
#include "base/json_object.h"
#include "model/checkpoint/model_folder.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {

// Reads image_size, patch_size and num_channels of config.json into config.image, and what follows from them: the
// features of a row and the positions. Errors are the object's.
void ReadPatches(JsonObject& object, ModelConfig& config);

// Reads preprocessor_config.json, if there is one, into config.image_processor; adds its text to config.others.
// INVALID_ARGUMENT: it asks for what is not served, or makes images of another size than config.image has; the message
// begins with the name of the file.
absl::Status ReadPreprocessor(ModelFolder& files, ModelConfig& config);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_IMAGE_FILES_H_
