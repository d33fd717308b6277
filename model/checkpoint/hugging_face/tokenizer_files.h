// The tokenizer of a Hugging Face folder, checked against its model.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TOKENIZER_FILES_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TOKENIZER_FILES_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/chat/chat_template.h"
#include "model/checkpoint/hugging_face/family.h"
#include "model/checkpoint/model_folder.h"
#include "model/config/config.h"
#include "model/tokenizers/hf_tokenizer.h"

namespace edgewise::hugging_face {

// Reads tokenizer.json, or else vocab.txt, with the files that name special tokens. Null: the folder has neither of the
// two. `lower_case`: HfTokenizer::Read. INVALID_ARGUMENT: HfTokenizer::Read; the message begins with the name of the
// file.
absl::StatusOr<std::unique_ptr<const HfTokenizer>> ReadTokenizer(ModelFolder& files, bool lower_case);

// Where ReadTokenizer gives null: which files of a tokenizer that is not read are there, and what to do. Empty: none.
std::string UnreadTokenizer(ModelFolder& files);

// Whether texts get token types: not where tokenizer_config.json has model_input_names without token_type_ids.
// INVALID_ARGUMENT: the field is no list of strings.
absl::StatusOr<bool> GivesTypes(ModelFolder& files);

// INVALID_ARGUMENT: the template has an id or a type that the model has not; or the pad, mask or cls token has another
// id than config.json (`config`, without nulls) says; the message names both. Other tokens may have an id that the
// model has not: Model refuses the texts that have one.
absl::Status CheckTokenizer(const HfTokenizer& tokenizer, const nlohmann::json& config, const ModelConfig& model);

// The chat template: chat_template.jinja, or else chat_template of tokenizer_config.json, which is a text, or a list of
// which the one named "default" counts, and "tool_use" where a request has tools. NOT_FOUND: NoTemplate;
// INVALID_ARGUMENT: ChatTemplate::Read; the message begins with the name of the file.
absl::StatusOr<chat::ChatTemplate> ReadChatTemplate(ModelFolder& files, const HfTokenizer& tokenizer);

// The id of the mask token: the one that a file names, or else the family's. INVALID_ARGUMENT: there is none; `unread`
// is UnreadTokenizer.
absl::StatusOr<int32_t> MaskTokenOf(const HfTokenizer* tokenizer, const Family& family, const std::string& unread);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_TOKENIZER_FILES_H_
