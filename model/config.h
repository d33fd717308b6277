// What config.json says of a model (docs/model-format.md).
#ifndef EDGEWISE_MODEL_CONFIG_H_
#define EDGEWISE_MODEL_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/draw.h"

namespace edgewise {

enum class Task { kSequenceClassification, kPairClassification, kTokenClassification };
enum class NormPosition { kPre, kPost };
enum class PositionEmbedding { kLearned, kSinusoidal, kNone };
enum class Pooling { kMeanValid, kMeanMaxLength, kCls };
enum class HiddenAct { kGelu, kRelu };
enum class TokenizerKind { kNone, kByte, kChar, kWord };
enum class AttentionKind { kDense, kSbm };

struct TokenizerConfig {
  TokenizerKind kind = TokenizerKind::kNone;
  int32_t offset = 1;                                // byte
  std::vector<std::string> vocabulary;               // char, word
  int32_t unknown_token_id = -1;                     // -1: unknown text is an error
  bool lowercase = false;                            // word
  std::map<std::string, std::string> substitutions;  // word
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kDense;
  // sbm
  int32_t num_clusters = 0;
  Law law = Law::kBernoulli;
  float exploration = 0.0f;
  bool self_loops = false;
  int32_t local_window = 0;
};

struct ModelConfig {
  Task task = Task::kSequenceClassification;
  std::string description;
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t num_hidden_layers = 0;
  bool tied_layers = false;
  int32_t num_attention_heads = 0;
  int32_t head_dim = 0;
  int32_t intermediate_size = 0;
  int32_t max_position_embeddings = 0;
  float layer_norm_eps = 1e-5f;
  HiddenAct hidden_act = HiddenAct::kGelu;
  NormPosition norm_position = NormPosition::kPre;
  PositionEmbedding position_embedding = PositionEmbedding::kLearned;
  int32_t pad_token_id = 0;   // -1: none
  int32_t cls_token_id = -1;  // -1: none
  Pooling pooling = Pooling::kMeanValid;
  int32_t num_labels = 0;
  std::vector<std::string> labels;     // [num_labels] or empty
  int32_t classifier_hidden_size = 0;  // 0: one linear layer
  TokenizerConfig tokenizer;
  std::vector<AttentionConfig> attention;  // [num_hidden_layers]
  std::vector<double> budget_shares;       // [num_hidden_layers]
};

// Parses and checks everything that can be checked without the weights. INVALID_ARGUMENT: the message names the field,
// what was found and what is allowed; an unknown field is an error with the nearest known name.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json);

// As config.json and ListModels write them.
const char* TaskName(Task task);
const char* TokenizerName(TokenizerKind kind);
// "dense", "sbm/bernoulli", ...; kinds that differ between layers are joined by commas, in order of first use.
std::string AttentionName(const ModelConfig& config);

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_CONFIG_H_
