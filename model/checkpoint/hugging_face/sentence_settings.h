// The settings of sentence-transformers for texts and scores, beside its modules: sentence_bert_config.json and
// config_sentence_transformers.json.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_SETTINGS_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_SETTINGS_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json_object.h"
#include "model/checkpoint/model_folder.h"

namespace edgewise::hugging_face {

struct SentenceSettings {
  bool cross_encoder = false;   // it scores texts, and gives no vectors
  int32_t max_text_tokens = 0;  // with those of the tokenizer's template; 0: these files do not say
  bool lower_case = false;      // texts, before all else that the tokenizer does
  std::map<std::string, std::string> prompts;
  std::string default_prompt;  // a name of these; empty: none
  int32_t truncate_dim = 0;    // 0: none
  std::string activation;      // of a cross-encoder's scores: "torch.nn.modules.activation.Sigmoid"; empty: not said
};

// Reads config_sentence_transformers.json, where it is there. Names of fields that make no difference are added to
// `skipped`. INVALID_ARGUMENT: as ReadSentenceModules.
absl::Status ReadModelSettings(ModelFolder& files, SentenceSettings& settings, std::vector<std::string>& skipped);

// The same of sentence_bert_config.json, which the Transformer has. `settings` says whether it is a cross-encoder.
absl::Status ReadTransformerSettings(ModelFolder& files, SentenceSettings& settings, std::vector<std::string>& skipped);

// The JSON of a file. NOT_FOUND: there is none. Messages begin with `file`.
absl::StatusOr<nlohmann::json> ReadJson(ModelFolder& files, const std::string& file);

// "<file>: <message>"
absl::Status InvalidIn(const std::string& file, const std::string& message);

// Takes fields that make no difference as read, and adds those that are there to `skipped`.
void SkipFields(const std::vector<const char*>& names, const std::string& file, JsonObject& fields,
                std::vector<std::string>& skipped);

// The class of PyTorch that a path names: "torch.nn.modules.activation.Tanh" is "Tanh". Empty: of another package.
std::string TorchClass(const std::string& path);

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_SENTENCE_SETTINGS_H_
