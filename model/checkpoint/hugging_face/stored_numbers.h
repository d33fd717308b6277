// The numbers of a tensor of a checkpoint, as float32, whatever they are stored as.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_STORED_NUMBERS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_STORED_NUMBERS_H_

#include <deque>
#include <span>
#include <vector>

#include "model/checkpoint/hugging_face/shards.h"

namespace edgewise::hugging_face {

// The numbers of a tensor of F32, F16, BF16 or F64, each rounded once to the nearest; its file has been read. They lie
// in the file, or in a new entry of `converted`, and live as long as these.
std::span<const float> StoredNumbers(const Shards::Tensor& tensor, std::deque<std::vector<float>>& converted);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_STORED_NUMBERS_H_
