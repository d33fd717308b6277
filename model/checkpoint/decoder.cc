#include "model/checkpoint/decoder.h"

namespace edgewise {

int32_t ReachOfDecoder(const ModelConfig& config, int32_t layer) {
  const AttentionConfig& attention = config.attention[layer];
  return attention.kind == &kDenseKind ? attention.reach : AllPairs::kFar;
}

absl::StatusOr<std::unique_ptr<PreparedDecoder>> PrepareDecoder(const ModelConfig& config, const ModelWeights& weights,
                                                                Backend& backend) {
  if (config.task != ModelTask::kCausalLm || !config.causal || config.norm_position != NormPosition::kPre ||
      !config.first_norm || config.head_norm || config.embedding_norm || config.token_types > 0 ||
      config.pairwise_bias != PairwiseBiasKind::kNone || weights.distance_bias.data() != nullptr ||
      weights.features != nullptr || weights.classifier_hidden != nullptr || weights.lm_head == nullptr) {
    return nullptr;
  }
  Decoder decoder;
  decoder.words = weights.word.AsMatrix(config.vocab_size, config.hidden_size);
  if (weights.position.data() != nullptr) {
    decoder.positions = weights.position.AsMatrix(weights.position.size() / config.hidden_size, config.hidden_size);
  }
  decoder.heads = config.num_attention_heads;
  decoder.key_value_heads = KeyValueHeads(config);
  decoder.head_dim = AlignedHeadDim(config, backend);
  decoder.score_scale = config.score_scale;
  decoder.norm_epsilon = config.layer_norm_eps;
  decoder.gated = config.gated;
  decoder.activation = config.hidden_act;
  decoder.most_tokens = config.max_position_embeddings;
  for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerWeights& layer = weights.layer(l);
    decoder.layers.push_back({.norm_weight = layer.attention_norm.weight.data(),
                              .norm_bias = layer.attention_norm.bias.data(),
                              .query_key_value = layer.query_key_value.get(),
                              .rotary = layer.rotary,
                              .reach = ReachOfDecoder(config, l),
                              .output = layer.output.get(),
                              .mlp_norm_weight = layer.mlp_norm.weight.data(),
                              .mlp_norm_bias = layer.mlp_norm.bias.data(),
                              .up = layer.up.get(),
                              .down = layer.down.get()});
  }
  decoder.norm_weight = weights.final_norm.weight.data();
  decoder.norm_bias = weights.final_norm.bias.data();
  decoder.head = weights.lm_head.get();
  return backend.PrepareDecoder(decoder);
}

}  // namespace edgewise
