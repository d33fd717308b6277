// How long texts may be, beside what the model can take.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TEXT_LIMIT_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TEXT_LIMIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise::hugging_face {

// model_max_length of tokenizer_config.json: the most tokens of a text, those of the template included, where
// sentence-transformers names no other limit. 0: the file gives none. INVALID_ARGUMENT: it is no number from 1 on.
absl::StatusOr<int32_t> ReadModelMaxLength(ModelFolder& files);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TEXT_LIMIT_H_
