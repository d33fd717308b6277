#include "model/checkpoint/hugging_face/family.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kTensors[] = {
    {"embeddings.word", "embeddings.word_embeddings"},
    {"embeddings.position", "embeddings.position_embeddings"},
    {"embeddings.norm", "embeddings.LayerNorm"},
    {"layers.*.attention.query", "transformer.layer.*.attention.q_lin"},
    {"layers.*.attention.key", "transformer.layer.*.attention.k_lin"},
    {"layers.*.attention.value", "transformer.layer.*.attention.v_lin"},
    {"layers.*.attention.output", "transformer.layer.*.attention.out_lin"},
    {"layers.*.attention_norm", "transformer.layer.*.sa_layer_norm"},
    {"layers.*.mlp.up", "transformer.layer.*.ffn.lin1"},
    {"layers.*.mlp.down", "transformer.layer.*.ffn.lin2"},
    {"layers.*.mlp_norm", "transformer.layer.*.output_layer_norm"},
};

constexpr TensorName kSequence[] = {
    {"classifier.hidden", "pre_classifier"},
    {"classifier.output", "classifier"},
};

constexpr TensorName kTokens[] = {{"classifier.output", "classifier"}};

constexpr TensorName kMasked[] = {
    {"classifier.hidden", "vocab_transform"},
    {"classifier.norm", "vocab_layer_norm"},
    {"classifier.output.weight", "vocab_projector.weight"},
    {"classifier.output.weight", "embeddings.word_embeddings.weight"},
    {"classifier.output.bias", "vocab_projector.bias"},
};

constexpr TaskHead kHeads[] = {
    {"Model", ModelTask::kEmbedding},
    {"ForSequenceClassification", ModelTask::kSequenceClassification, TaskHead::Act::kRelu, kSequence},
    {"ForTokenClassification", ModelTask::kTokenClassification, TaskHead::Act::kNone, kTokens},
    {"ForMaskedLM", ModelTask::kFillMask, TaskHead::Act::kHidden, kMasked},
};

constexpr std::string_view kUnread[] = {"embeddings.position_ids", "qa_outputs"};

}  // namespace

constinit const Family kDistilBert = {.model_type = "distilbert",
                                      .class_name = "DistilBert",
                                      .prefix = "distilbert.",
                                      .hidden_size = "dim",
                                      .num_hidden_layers = "n_layers",
                                      .num_attention_heads = "n_heads",
                                      .intermediate_size = "hidden_dim",
                                      .hidden_act = "activation",
                                      .layer_norm_eps = nullptr,
                                      .token_types = false,
                                      .mask_token = "[MASK]",
                                      .tensors = kTensors,
                                      .heads = kHeads,
                                      .unread = kUnread};

}  // namespace edgewise::hugging_face
