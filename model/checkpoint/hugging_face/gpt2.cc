// GPT-2. Its linear weights are Conv1D: [in, out], with query, key and value in one.
#include "model/checkpoint/hugging_face/family.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kTensors[] = {
    {"embeddings.word", "wte"},
    {"embeddings.position", "wpe"},
    {"layers.*.attention_norm", "h.*.ln_1"},
    {"layers.*.attention.query", "h.*.attn.c_attn", true, 0, 3},
    {"layers.*.attention.key", "h.*.attn.c_attn", true, 1, 3},
    {"layers.*.attention.value", "h.*.attn.c_attn", true, 2, 3},
    {"layers.*.attention.output", "h.*.attn.c_proj", true},
    {"layers.*.mlp_norm", "h.*.ln_2"},
    {"layers.*.mlp.up", "h.*.mlp.c_fc", true},
    {"layers.*.mlp.down", "h.*.mlp.c_proj", true},
    {"final_norm", "ln_f"},
};

constexpr TensorName kLanguageModel[] = {{"lm_head", "lm_head"}};

constexpr TaskHead kHeads[] = {{"Model", ModelTask::kEmbedding},
                               {"LMHeadModel", ModelTask::kCausalLm, TaskHead::Act::kNone, kLanguageModel}};

// The causal mask, which older files have as a buffer.
constexpr std::string_view kUnread[] = {"h.*.attn.bias", "h.*.attn.masked_bias"};

void ReadMore(JsonObject& object, ModelConfig& config) {
  // Both change the numbers: the first divides the scores by the number of the layer, the second rounds elsewhere.
  for (const char* field : {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}) {
    if (object.Boolean(field, false)) object.FailAt(field, true, "served is false");
  }
  if (!object.Boolean("scale_attn_weights", true)) config.score_scale = 1.0f;
  config.norm_position = NormPosition::kPre;
  config.max_position_embeddings = object.Integer("n_positions", 1, kMaxPositions, 1024);
  config.pad_token_id = -1;
}

}  // namespace

constinit const Family kGpt2 = {.model_type = "gpt2",
                                .class_name = "GPT2",
                                .prefix = "transformer.",
                                .causal = true,
                                .hidden_size = "n_embd",
                                .num_hidden_layers = "n_layer",
                                .num_attention_heads = "n_head",
                                .intermediate_size = "n_inner",
                                .hidden_act = "activation_function",
                                .default_act = "gelu_new",
                                .layer_norm_eps = "layer_norm_epsilon",
                                .default_layer_norm_eps = 1e-5,
                                .four_times = true,
                                .read_more = ReadMore,
                                .tensors = kTensors,
                                .heads = kHeads,
                                .unread = kUnread};

}  // namespace edgewise::hugging_face
