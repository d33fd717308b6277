// The modules of a folder that sentence-transformers saved: how rows become the vector of a text, or its score.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/hugging_face/sentence_settings.h"
#include "model/checkpoint/model_folder.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {

// In a cross-encoder the Transformer is alone, with the head of its class; everything but the settings is as here.
struct SentenceModules {
  Pooling pooling = Pooling::kMeanValid;
  bool pools_prompts = true;
  std::vector<DenseLayer> dense;
  std::vector<std::string> dense_folders;  // of each, beside modules.json
  bool normalize = false;
  SentenceSettings settings;
  std::vector<std::string> skipped;  // "<file>: <field>", of fields that make no difference to an answer
};

// Reads modules.json, the config.json of each module, and the settings. Null: there is no modules.json.
// INVALID_ARGUMENT: a module, or a field that would change the answer, is not served; the message begins with the name
// of the file, and names the field.
absl::StatusOr<std::optional<SentenceModules>> ReadSentenceModules(ModelFolder& files);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_H_
