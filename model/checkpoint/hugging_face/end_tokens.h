// The tokens that end a text of a language model, as the files of its folder say.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_END_TOKENS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_END_TOKENS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise::hugging_face {

// The ids of eos_token_id, one or a list, of generation_config.json, or where it has none of config.json (`config`,
// without nulls); those beyond the vocabulary, which never come, are left out. None: the model ends no text.
// INVALID_ARGUMENT: not an id or a list of ids; the message begins with the name of the file.
absl::StatusOr<std::vector<int32_t>> ReadEndTokens(ModelFolder& files, const nlohmann::json& config,
                                                   int32_t vocab_size);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_END_TOKENS_H_
