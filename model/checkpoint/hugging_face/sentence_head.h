// The modules after the layers of a model that sentence-transformers saved, and the prompts before its texts.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_HEAD_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_HEAD_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/json_object.h"
#include "model/checkpoint/hugging_face/sentence.h"
#include "model/checkpoint/model_folder.h"
#include "model/config/config.h"
#include "model/tokenizers/hf_tokenizer.h"

namespace edgewise::hugging_face {

// Sets pooling, dense layers and size of a model of texts whose task is embedding: those of the modules (null: none),
// or the mean. `config` has its sizes. INVALID_ARGUMENT: dense layers do not fit each other.
absl::Status ReadEmbedding(const SentenceModules* modules, ModelConfig& config);

// Sets what a cross-encoder does with its scores: as its modules say (null: none), or the fields that older releases
// wrote to config.json (`object`). `config` has its task and labels. INVALID_ARGUMENT: it is not served.
absl::Status ReadScores(const SentenceModules* modules, JsonObject& object, ModelConfig& config);

// Sets the limit of texts and the prompts. Null: there are no modules, or no tokenizer. Errors: ReadModelMaxLength, and
// HfTokenizer::Encode of a prompt.
absl::Status ReadTexts(ModelFolder& files, const SentenceModules* modules, const HfTokenizer* tokenizer,
                       ModelConfig& config);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_HEAD_H_
