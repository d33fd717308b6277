// Encoders with norms before their sublayers, rotary positions, gates, and windows on both sides in most layers.
#include "model/checkpoint/hugging_face/family.h"
#include "model/checkpoint/hugging_face/layer_types.h"
#include "model/checkpoint/hugging_face/rotary.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kTensors[] = {
    {"embeddings.word", "embeddings.tok_embeddings"},
    {"embeddings.norm", "embeddings.norm"},
    {"layers.*.attention_norm", "layers.*.attn_norm"},
    {"layers.*.attention.query", "layers.*.attn.Wqkv", false, 0, 3},
    {"layers.*.attention.key", "layers.*.attn.Wqkv", false, 1, 3},
    {"layers.*.attention.value", "layers.*.attn.Wqkv", false, 2, 3},
    {"layers.*.attention.output", "layers.*.attn.Wo"},
    {"layers.*.mlp_norm", "layers.*.mlp_norm"},
    {"layers.*.mlp.gate", "layers.*.mlp.Wi", false, 0, 2},
    {"layers.*.mlp.up", "layers.*.mlp.Wi", false, 1, 2},
    {"layers.*.mlp.down", "layers.*.mlp.Wo"},
    {"final_norm", "final_norm"},
};

constexpr TensorName kClassifier[] = {
    {"classifier.hidden", "head.dense"},
    {"classifier.norm", "head.norm"},
    {"classifier.output", "classifier"},
};

constexpr TensorName kMasked[] = {
    {"classifier.hidden", "head.dense"},
    {"classifier.norm", "head.norm"},
    {"classifier.output.weight", "decoder.weight"},
    {"classifier.output.weight", "embeddings.tok_embeddings.weight"},
    {"classifier.output.bias", "decoder.bias"},
};

constexpr TaskHead kHeads[] = {
    {"Model", ModelTask::kEmbedding},
    {"ForSequenceClassification", ModelTask::kSequenceClassification, TaskHead::Act::kHidden, kClassifier},
    {"ForTokenClassification", ModelTask::kTokenClassification, TaskHead::Act::kHidden, kClassifier},
    {"ForMaskedLM", ModelTask::kFillMask, TaskHead::Act::kHidden, kMasked},
};

// Layers of type sliding_attention see half of local_attention on either side. Without layer_types every n-th layer,
// from the first on, sees all.
void ReadWindows(JsonObject& object, ModelConfig& config) {
  const int32_t window = object.Integer("local_attention", 1, kMaxPositions, 128);
  const int32_t every = object.Integer("global_attn_every_n_layers", 1, kMaxPositions, 3);
  if (object.Value("sliding_window", false).is_number()) {
    object.Fail("sliding_window is given; the windows of ModernBERT are those of local_attention");
  }
  const auto types = ReadLayerTypes(object, config.num_hidden_layers);
  for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
    if (types.has_value() ? (*types)[l] : l % every != 0) config.attention[l].reach = window / 2;
  }
}

void ReadMore(JsonObject& object, ModelConfig& config) {
  config.norm_position = NormPosition::kPre;
  config.embedding_norm = true;
  config.first_norm = false;
  config.gated = true;
  config.norm_bias = object.Boolean("norm_bias", false);
  config.projection_bias = config.output_bias = object.Boolean("attention_bias", false);
  config.feed_forward_bias = object.Boolean("mlp_bias", false);
  config.classifier_hidden_bias = object.Boolean("classifier_bias", false);
  config.decoder_bias = object.Boolean("decoder_bias", true);
  config.max_position_embeddings = object.Integer("max_position_embeddings", 1, kMaxPositions, 8192);
  ReadRotaryOfTypes(object, config);
  ReadWindows(object, config);
}

}  // namespace

constinit const Family kModernBert = {.model_type = "modernbert",
                                      .class_name = "ModernBert",
                                      .prefix = "model.",
                                      .hidden_act = "hidden_activation",
                                      .classifier_act = "classifier_activation",
                                      .classifier_pooling = "classifier_pooling",
                                      .layer_norm_eps = "norm_eps",
                                      .default_layer_norm_eps = 1e-5,
                                      .read_more = ReadMore,
                                      .pad_token_id = 50283,
                                      .token_types = false,
                                      .mask_token = "[MASK]",
                                      .tensors = kTensors,
                                      .heads = kHeads};

}  // namespace edgewise::hugging_face
