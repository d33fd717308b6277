#include "model/checkpoint/hugging_face/family.h"
#include "model/checkpoint/hugging_face/image_files.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kTensors[] = {
    {"embeddings.cls", "embeddings.cls_token"},
    {"embeddings.position.weight", "embeddings.position_embeddings"},
    {"embeddings.features", "embeddings.patch_embeddings.projection"},
    {"layers.*.attention_norm", "encoder.layer.*.layernorm_before"},
    {"layers.*.attention.query", "encoder.layer.*.attention.attention.query"},
    {"layers.*.attention.key", "encoder.layer.*.attention.attention.key"},
    {"layers.*.attention.value", "encoder.layer.*.attention.attention.value"},
    {"layers.*.attention.output", "encoder.layer.*.attention.output.dense"},
    {"layers.*.mlp_norm", "encoder.layer.*.layernorm_after"},
    {"layers.*.mlp.up", "encoder.layer.*.intermediate.dense"},
    {"layers.*.mlp.down", "encoder.layer.*.output.dense"},
    {"final_norm", "layernorm"},
};

constexpr TensorName kPooler[] = {{"classifier.hidden", "pooler.dense"}};
constexpr TensorName kClasses[] = {{"classifier.output", "classifier"}};

constexpr TaskHead kHeads[] = {
    {"Model", ModelTask::kEmbedding, TaskHead::Act::kTanh, kPooler},
    {"ForImageClassification", ModelTask::kSequenceClassification, TaskHead::Act::kNone, kClasses},
};

constexpr std::string_view kUnread[] = {"embeddings.mask_token", "decoder.0"};

void ReadMore(JsonObject& object, ModelConfig& config) {
  config.norm_position = NormPosition::kPre;
  config.pad_token_id = -1;
  config.projection_bias = object.Boolean("qkv_bias", true);
  ReadPatches(object, config);
}

}  // namespace

constinit const Family kVit = {.model_type = "vit",
                               .class_name = "ViT",
                               .prefix = "vit.",
                               .images = true,
                               .read_more = ReadMore,
                               .tensors = kTensors,
                               .heads = kHeads,
                               .unread = kUnread};

}  // namespace edgewise::hugging_face
