// The modules of a sentence-transformers folder: how rows become the vector of a text.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise::hugging_face {

struct SentenceModules {
  Pooling pooling = Pooling::kMeanValid;
  bool normalize = false;
  int32_t max_seq_length = 0;  // the most tokens of a text, those of the tokenizer's template included; 0: no limit
};

// Reads modules.json, the config.json of the Pooling module, the Transformer's sentence_bert_config.json and
// config_sentence_transformers.json. NOT_FOUND: there is no modules.json. INVALID_ARGUMENT: a module, a way of pooling
// or a change of the text is not served; the message begins with the name of the file.
absl::StatusOr<SentenceModules> ReadSentenceModules(ModelFolder& files);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
