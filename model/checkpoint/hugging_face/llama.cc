// Decoders of the Llama shape: RMS norms before their sublayers, rotary positions, grouped queries, a gate.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/hugging_face/family.h"
#include "model/checkpoint/hugging_face/layer_types.h"
#include "model/checkpoint/hugging_face/rotary.h"

namespace edgewise::hugging_face {
namespace {

constexpr TensorName kTensors[] = {
    {"embeddings.word", "embed_tokens"},
    {"layers.*.attention_norm", "layers.*.input_layernorm"},
    {"layers.*.attention.query", "layers.*.self_attn.q_proj"},
    {"layers.*.attention.key", "layers.*.self_attn.k_proj"},
    {"layers.*.attention.value", "layers.*.self_attn.v_proj"},
    {"layers.*.attention.query_norm", "layers.*.self_attn.q_norm"},
    {"layers.*.attention.key_norm", "layers.*.self_attn.k_norm"},
    {"layers.*.attention.output", "layers.*.self_attn.o_proj"},
    {"layers.*.mlp_norm", "layers.*.post_attention_layernorm"},
    {"layers.*.mlp.gate", "layers.*.mlp.gate_proj"},
    {"layers.*.mlp.up", "layers.*.mlp.up_proj"},
    {"layers.*.mlp.down", "layers.*.mlp.down_proj"},
    {"final_norm", "norm"},
};

constexpr TensorName kLanguageModel[] = {{"lm_head", "lm_head"}};

constexpr TaskHead kHeads[] = {{"Model", ModelTask::kEmbedding},
                               {"ForCausalLM", ModelTask::kCausalLm, TaskHead::Act::kNone, kLanguageModel}};

// A table of angles, which older files have.
constexpr std::string_view kUnread[] = {"layers.*.self_attn.rotary_emb.inv_freq"};

// Reads the fields that all of them have. `key_value_heads`: where config.json has no number of its own; 0: as many as
// heads.
void ReadShape(JsonObject& object, int32_t key_value_heads, int32_t positions, ModelConfig& config) {
  config.norm_position = NormPosition::kPre;
  config.rms_norm = true;
  config.norm_bias = false;
  config.gated = true;
  config.pad_token_id = -1;
  config.projection_bias = config.output_bias = config.feed_forward_bias = false;
  const int32_t heads = config.num_attention_heads;
  const int32_t fallback = key_value_heads > 0 ? key_value_heads : heads;
  config.num_key_value_heads = object.Integer("num_key_value_heads", 1, 4096, fallback);
  if (heads % config.num_key_value_heads != 0) {
    object.Fail(absl::StrCat("num_key_value_heads is ", config.num_key_value_heads, ", num_attention_heads is ", heads,
                             ": it does not divide"));
  }
  config.max_position_embeddings = object.Integer("max_position_embeddings", 1, kMaxPositions, positions);
  ReadRotary(object, config);
}

void SetWindow(int32_t window, AttentionConfig& layer) { layer.reach = window - 1; }

void ReadLlama(JsonObject& object, ModelConfig& config) {
  ReadShape(object, 0, 2048, config);
  config.projection_bias = config.output_bias = object.Boolean("attention_bias", false);
  config.feed_forward_bias = object.Boolean("mlp_bias", false);
}

// Every layer has the window. null, which says that there is none, has become false (folder.cc).
void ReadMistral(JsonObject& object, ModelConfig& config) {
  ReadShape(object, 8, 4096 * 32, config);
  if (object.Has("layer_types")) object.Fail("layer_types is given; Mistral models have one window for all layers");
  if (object.Value("sliding_window", false) == false) return;
  const int32_t window = object.Integer("sliding_window", 1, kMaxPositions, 4096);
  for (AttentionConfig& layer : config.attention) SetWindow(window, layer);
}

// The layers from max_window_layers on have the window, or those that layer_types names.
void ReadQwenWindows(JsonObject& object, ModelConfig& config) {
  const int32_t first = object.Integer("max_window_layers", 0, kMaxPositions, 28);
  const bool used = object.Boolean("use_sliding_window", false) && object.Value("sliding_window", false) != false;
  const int32_t window = used ? object.Integer("sliding_window", 1, kMaxPositions, 4096) : 0;
  const auto types = ReadLayerTypes(object, config.num_hidden_layers);
  for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
    if (types.has_value() ? !(*types)[l] : l < first) continue;
    if (used) {
      SetWindow(window, config.attention[l]);
    } else if (types.has_value()) {
      return object.Fail(absl::StrCat("layer_types[", l, "] is \"sliding_attention\"; use_sliding_window is false"));
    }
  }
}

void ReadQwen2(JsonObject& object, ModelConfig& config) {
  ReadShape(object, 32, 32768, config);
  config.projection_bias = true;
  ReadQwenWindows(object, config);
}

void ReadQwen3(JsonObject& object, ModelConfig& config) {
  ReadShape(object, 32, 32768, config);
  config.head_norm = true;
  config.projection_bias = config.output_bias = object.Boolean("attention_bias", false);
  ReadQwenWindows(object, config);
}

constexpr Family Decoder(std::string_view model_type, std::string_view class_name, int32_t head_dim,
                         void (*read_more)(JsonObject&, ModelConfig&)) {
  return {.model_type = model_type,
          .class_name = class_name,
          .prefix = "model.",
          .causal = true,
          .default_act = "silu",
          .layer_norm_eps = "rms_norm_eps",
          .default_layer_norm_eps = 1e-6,
          .head_dim = "head_dim",
          .default_head_dim = head_dim,
          .tied = false,
          .read_more = read_more,
          .tensors = kTensors,
          .heads = kHeads,
          .unread = kUnread};
}

}  // namespace

constinit const Family kLlama = Decoder("llama", "Llama", 0, ReadLlama);
constinit const Family kMistral = Decoder("mistral", "Mistral", 0, ReadMistral);
constinit const Family kQwen2 = Decoder("qwen2", "Qwen2", 0, ReadQwen2);
constinit const Family kQwen3 = Decoder("qwen3", "Qwen3", 128, ReadQwen3);

}  // namespace edgewise::hugging_face
