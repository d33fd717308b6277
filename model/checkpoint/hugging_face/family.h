// The families of Hugging Face models that are served, as data: names of fields and of tensors. One file a family.
#ifndef EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FAMILY_H_
#define EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FAMILY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json_object.h"
#include "model/config/config.h"

namespace edgewise::hugging_face {

// A tensor's name in docs/model-format.md and in the family's files, there without Family::prefix. "*" stands for the
// number of a layer. Names without .weight and .bias are of both. Several rows with the same `ours` are names of one
// weight: tied, so one of them is enough, and those that are there must be equal. Where the output layer is not tied
// (Folder::tied) the first that is there counts, and the word embedding does not.
struct TensorName {
  std::string_view ours, theirs;
  bool transposed = false;      // matrices are [in, out] in the file
  int32_t part = 0, parts = 1;  // ours has the outputs of this part of a tensor of `parts` equal ones
};

// The head that follows the last layer in one class of models.
struct TaskHead {
  enum class Act {
    kNone,
    kRelu,
    kTanh,
    kGelu,
    kHidden
  };  // of the hidden layer; kNone: there is none; kHidden: Family::classifier_act

  std::string_view architecture;  // without Family::class_name: "ForMaskedLM"
  ModelTask task;
  Act act = Act::kNone;
  std::span<const TensorName> tensors = {};
};

// Where a position's row of the table is.
enum class PositionRows {
  kPlace,     // at its place in the text
  kAfterPad,  // pad_token_id + 1 rows later, and positions count the tokens that are not pads
  kAfterTwo,  // the same, 2 rows later
};

struct Family {
  std::string_view model_type;  // "bert"
  std::string_view class_name;  // what its architectures begin with: "Bert"
  std::string_view prefix;      // of the base model's tensors; may be missing in the file: "bert."
  bool causal = false;          // a language model: no token is masked, and each attends to itself and to earlier ones
  bool images = false;          // the input is the patches of an image, behind a CLS row
  // Names of fields of config.json.
  const char* hidden_size = "hidden_size";
  const char* num_hidden_layers = "num_hidden_layers";
  const char* num_attention_heads = "num_attention_heads";
  const char* intermediate_size = "intermediate_size";
  const char* hidden_act = "hidden_act";
  std::string_view default_act = "gelu";
  const char* classifier_act = nullptr;           // of Head::Act::kHidden; null: hidden_act
  const char* classifier_pooling = nullptr;       // cls or mean, of sequence-classification; null: always cls
  const char* layer_norm_eps = "layer_norm_eps";  // null: always the default
  double default_layer_norm_eps = 1e-12;
  const char* head_dim = nullptr;  // null, or where config.json has none and there is no default: width / heads
  int32_t default_head_dim = 0;
  bool four_times = false;  // where config.json has no intermediate_size, it is four times the width
  bool tied = true;         // tie_word_embeddings where config.json has none
  // Reads what is left of config.json, after the sizes: all that follows is not for such a family then. Null: none.
  void (*read_more)(JsonObject& object, ModelConfig& config) = nullptr;

  int32_t pad_token_id = 0;  // where config.json has none
  PositionRows position_rows = PositionRows::kPlace;
  bool token_types = true;
  bool relative_buckets = false;
  std::string_view mask_token;

  std::span<const TensorName> tensors;  // of the base model
  std::span<const TaskHead> heads;      // the first is the base model itself
  // Tensors that no head of ours reads: buffers, and the heads of other tasks. "*" as in TensorName.
  std::span<const std::string_view> unread;
};

// The base model's tensors of BERT, which other families have too.
inline constexpr TensorName kBertTensors[] = {
    {"embeddings.word", "embeddings.word_embeddings"},
    {"embeddings.position", "embeddings.position_embeddings"},
    {"embeddings.type", "embeddings.token_type_embeddings"},
    {"embeddings.norm", "embeddings.LayerNorm"},
    {"layers.*.attention.query", "encoder.layer.*.attention.self.query"},
    {"layers.*.attention.key", "encoder.layer.*.attention.self.key"},
    {"layers.*.attention.value", "encoder.layer.*.attention.self.value"},
    {"layers.*.attention.output", "encoder.layer.*.attention.output.dense"},
    {"layers.*.attention_norm", "encoder.layer.*.attention.output.LayerNorm"},
    {"layers.*.mlp.up", "encoder.layer.*.intermediate.dense"},
    {"layers.*.mlp.down", "encoder.layer.*.output.dense"},
    {"layers.*.mlp_norm", "encoder.layer.*.output.LayerNorm"},
};

// Constant-initialised, so that other static objects may use them.
extern const Family kBert, kRoberta, kXlmRoberta, kCamembert, kDistilBert, kGpt2, kLlama, kMistral, kModernBert, kMpnet,
    kQwen2, kQwen3, kVit;

// Null: not served.
const Family* FindFamily(std::string_view model_type);
// "BertForMaskedLM"
std::string ClassName(const Family& family, const TaskHead& head);
// "bert, camembert, ..."
std::string FamilyNames();

}  // namespace edgewise::hugging_face

#endif  // EDGEWISE_MODEL_CHECKPOINT_HUGGING_FACE_FAMILY_H_
