// A model's folder as save_pretrained of Hugging Face transformers, or save of sentence-transformers, leaves it
// (docs/model-format.md, "Hugging Face folders").
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FOLDER_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FOLDER_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat/chat_template.h"
#include "model/checkpoint/hugging_face/family.h"
#include "model/checkpoint/model_folder.h"
#include "model/config/config.h"
#include "model/tokenizers/hf_tokenizer.h"

namespace edgewise::hugging_face {

// The contents of the files beside the weights.
struct Folder {
  ModelConfig config;
  const Family* family = nullptr;
  const TaskHead* head = nullptr;
  std::string architecture;                                      // "BertForMaskedLM"
  std::unique_ptr<const HfTokenizer> tokenizer;                  // null: the folder has none
  absl::StatusOr<chat::ChatTemplate> chat = chat::NoTemplate();  // of a language model; an error stops no load
  std::string weights;  // transformers_weights: the file that has them, or its index; empty: the usual ones
  bool tied = true;     // the output layer over the vocabulary is the word embedding
  std::vector<std::string> dense_folders;   // of ModelConfig::dense: where their weights are
  std::vector<std::string> skipped_fields;  // "<file>: <field>", of those that make no difference to an answer
};

// Whether a config.json is one of Hugging Face and not our own, which names a task.
bool IsHuggingFace(const nlohmann::json& config);

// Reads the folder of this config.json. INVALID_ARGUMENT: a file is not valid, or the model or one of its settings is
// not served; the message begins with the name of the file, and names field, value and what is served.
absl::StatusOr<Folder> ReadFolder(ModelFolder& files, const nlohmann::json& config);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FOLDER_H_
