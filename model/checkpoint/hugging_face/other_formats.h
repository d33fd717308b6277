// Recognises models in other formats in a folder that lacks a file of ours.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_OTHER_FORMATS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_OTHER_FORMATS_H_

#include <string>

#include "model/checkpoint/model_folder.h"

namespace edgewise::hugging_face {

// The end of the message that the folder has no file `missing`: the one that it has instead, and what to do about it.
// Empty where it has nothing that is known. Any thread.
std::string OtherFormat(const std::string& missing, const ModelFolder& files);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_OTHER_FORMATS_H_
