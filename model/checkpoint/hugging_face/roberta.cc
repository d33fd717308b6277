// RoBERTa, the families that differ from it in their vocabulary alone, and MPNet, which has its heads.
#include "model/checkpoint/hugging_face/family.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kMpnetTensors[] = {
    {"embeddings.word", "embeddings.word_embeddings"},
    {"embeddings.position", "embeddings.position_embeddings"},
    {"embeddings.norm", "embeddings.LayerNorm"},
    {"embeddings.relative_buckets", "encoder.relative_attention_bias"},
    {"layers.*.attention.query", "encoder.layer.*.attention.attn.q"},
    {"layers.*.attention.key", "encoder.layer.*.attention.attn.k"},
    {"layers.*.attention.value", "encoder.layer.*.attention.attn.v"},
    {"layers.*.attention.output", "encoder.layer.*.attention.attn.o"},
    {"layers.*.attention_norm", "encoder.layer.*.attention.LayerNorm"},
    {"layers.*.mlp.up", "encoder.layer.*.intermediate.dense"},
    {"layers.*.mlp.down", "encoder.layer.*.output.dense"},
    {"layers.*.mlp_norm", "encoder.layer.*.output.LayerNorm"},
};

constexpr TensorName kSequence[] = {
    {"classifier.hidden", "classifier.dense"},
    {"classifier.output", "classifier.out_proj"},
};

constexpr TensorName kTokens[] = {{"classifier.output", "classifier"}};

constexpr TensorName kMasked[] = {
    {"classifier.hidden", "lm_head.dense"},
    {"classifier.norm", "lm_head.layer_norm"},
    {"classifier.output.weight", "lm_head.decoder.weight"},
    {"classifier.output.weight", "embeddings.word_embeddings.weight"},
    {"classifier.output.bias", "lm_head.decoder.bias"},
    {"classifier.output.bias", "lm_head.bias"},
};

constexpr TaskHead kHeads[] = {
    {"Model", ModelTask::kEmbedding},
    {"ForSequenceClassification", ModelTask::kSequenceClassification, TaskHead::Act::kTanh, kSequence},
    {"ForTokenClassification", ModelTask::kTokenClassification, TaskHead::Act::kNone, kTokens},
    {"ForMaskedLM", ModelTask::kFillMask, TaskHead::Act::kGelu, kMasked},
};

constexpr std::string_view kUnread[] = {"embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense",
                                        "qa_outputs"};
constexpr std::string_view kMpnetUnread[] = {"embeddings.position_ids", "pooler.dense", "qa_outputs"};

constexpr Family Roberta(std::string_view model_type, std::string_view class_name) {
  return {.model_type = model_type,
          .class_name = class_name,
          .prefix = "roberta.",
          .pad_token_id = 1,
          .position_rows = PositionRows::kAfterPad,
          .mask_token = "<mask>",
          .tensors = kBertTensors,
          .heads = kHeads,
          .unread = kUnread};
}

}  // namespace

constinit const Family kRoberta = Roberta("roberta", "Roberta");
constinit const Family kXlmRoberta = Roberta("xlm-roberta", "XLMRoberta");
constinit const Family kCamembert = Roberta("camembert", "Camembert");

constinit const Family kMpnet = {.model_type = "mpnet",
                                 .class_name = "MPNet",
                                 .prefix = "mpnet.",
                                 .pad_token_id = 1,
                                 .position_rows = PositionRows::kAfterTwo,
                                 .token_types = false,
                                 .relative_buckets = true,
                                 .mask_token = "<mask>",
                                 .tensors = kMpnetTensors,
                                 .heads = kHeads,
                                 .unread = kMpnetUnread};

}  // namespace edgewise::hugging_face
