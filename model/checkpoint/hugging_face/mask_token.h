// The id of a folder's mask token.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_MASK_TOKEN_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_MASK_TOKEN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace edgewise::hugging_face {

// The id of `token` among the added tokens of tokenizer.json, or else its line in vocab.txt. INVALID_ARGUMENT: it is in
// neither, or a file is not valid.
absl::StatusOr<int32_t> ReadMaskToken(const std::string& directory, std::string_view token, int32_t vocab_size);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_MASK_TOKEN_H_
