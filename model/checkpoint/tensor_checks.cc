#include "model/checkpoint/tensor_checks.h"

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/did_you_mean.h"
#include "model/kinds/kind.h"

namespace edgewise {

std::string LayerPrefix(size_t layer) { return absl::StrCat("layers.", layer, "."); }

std::vector<TensorShape> ExpectedTensors(const ModelConfig& config) {
  std::vector<TensorShape> tensors;
  const int64_t hidden = config.hidden_size;
  const int64_t width = static_cast<int64_t>(config.num_attention_heads) * config.head_dim;
  const int64_t key_width = static_cast<int64_t>(KeyValueHeads(config)) * config.head_dim;
  auto add = [&](const std::string& name, std::vector<int64_t> shape) { tensors.push_back({name, std::move(shape)}); };
  auto add_affine = [&](const std::string& name, std::vector<int64_t> shape, bool bias = true) {
    if (bias) add(name + ".bias", {shape[0]});
    add(name + ".weight", std::move(shape));
  };
  if (config.feature_size == 0) add("embeddings.word.weight", {config.vocab_size, hidden});
  if (config.position_embedding == PositionEmbedding::kLearned) {
    add("embeddings.position.weight", {config.max_position_embeddings + config.position_offset, hidden});
  }
  if (config.token_types > 0) add("embeddings.type.weight", {config.token_types, hidden});
  if (config.embedding_norm) add_affine("embeddings.norm", {hidden}, config.norm_bias);
  if (config.relative_buckets > 0) {
    add("embeddings.relative_buckets.weight", {config.relative_buckets, config.num_attention_heads});
  }
  if (config.feature_size > 0) add_affine("embeddings.features", {hidden, config.feature_size});
  if (config.image.channels > 0) add("embeddings.cls", {hidden});
  if (config.position_embedding == PositionEmbedding::kRelative) {
    add("embeddings.relative.weight",
        {config.num_attention_heads, 2 * static_cast<int64_t>(config.max_position_embeddings) - 1});
  }
  if (config.pairwise_bias == PairwiseBiasKind::kBuckets) {
    add("embeddings.pairwise.weight", {config.num_attention_heads, config.num_buckets});
  }
  const size_t layers = config.tied_layers ? 1 : config.num_hidden_layers;
  for (size_t l = 0; l < layers; ++l) {
    const std::string prefix = LayerPrefix(l);
    if (l > 0 || config.first_norm) add_affine(prefix + "attention_norm", {hidden}, config.norm_bias);
    add_affine(prefix + "attention.query", {width, hidden}, config.projection_bias);
    for (const char* name : {"key", "value"}) {
      add_affine(prefix + "attention." + name, {key_width, hidden}, config.projection_bias);
    }
    for (const char* name : {"query_norm", "key_norm"}) {
      if (config.head_norm) add_affine(prefix + "attention." + name, {config.head_dim}, config.norm_bias);
    }
    add_affine(prefix + "attention.output", {hidden, width}, config.output_bias);
    const AttentionConfig& attention = config.attention[l];
    if (attention.kind->tensors != nullptr) {
      for (TensorShape& tensor : attention.kind->tensors(config, attention)) {
        tensors.push_back({absl::StrCat(prefix, "attention.", tensor.name), std::move(tensor.shape), tensor.optional});
      }
    }
    add_affine(prefix + "mlp_norm", {hidden}, config.norm_bias);
    const bool bias = config.feed_forward_bias;
    if (config.gated) add_affine(prefix + "mlp.gate", {config.intermediate_size, hidden}, bias);
    add_affine(prefix + "mlp.up", {config.intermediate_size, hidden}, bias);
    add_affine(prefix + "mlp.down", {hidden, config.intermediate_size}, bias);
  }
  if (config.norm_position == NormPosition::kPre) add_affine("final_norm", {hidden}, config.norm_bias);
  if (config.task == ModelTask::kCausalLm) {
    if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, hidden});
    return tensors;
  }
  int64_t features = config.task == ModelTask::kPairClassification ? 4 * hidden : hidden;
  if (config.classifier_hidden_size > 0) {
    add_affine("classifier.hidden", {config.classifier_hidden_size, features}, config.classifier_hidden_bias);
    features = config.classifier_hidden_size;
    if (config.classifier_norm) add_affine("classifier.norm", {features}, config.norm_bias);
  }
  for (size_t l = 0; l < config.dense.size(); ++l) {
    const DenseLayer& layer = config.dense[l];
    add_affine(absl::StrCat("dense.", l), {layer.out_features, layer.in_features}, layer.bias);
  }
  if (config.task == ModelTask::kEmbedding) return tensors;
  add_affine("classifier.output", {config.num_labels, features},
             config.decoder_bias || config.task != ModelTask::kFillMask);
  return tensors;
}

absl::Status CheckTensors(const ModelConfig& config, const SafetensorsFile& file) {
  std::map<std::string, std::vector<int64_t>> expected;
  std::set<std::string> names;
  for (auto& [name, shape, optional] : ExpectedTensors(config)) {
    if (!optional || file.tensors().contains(name)) expected[name] = shape;
  }
  for (const auto& [name, shape] : expected) {
    names.insert(name);
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " ", ShowShape(shape), " is missing"));
    }
    if (found->second.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has shape ", ShowShape(found->second.shape),
                                                     "; config.json expects ", ShowShape(shape)));
    }
    if (found->second.dtype != "F32") {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " has dtype ", found->second.dtype, "; F32 is expected"));
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (expected.count(name) != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, " is not part of this model", DidYouMean(name, names)));
  }
  return absl::OkStatus();
}

NamedTensors TensorsOf(const SafetensorsFile& file) {
  NamedTensors tensors;
  for (const auto& [name, entry] : file.tensors()) {
    if (entry.dtype != "F32") continue;
    tensors[name] = {entry.shape, {file.Values(name), (entry.end - entry.begin) / sizeof(float)}, name};
  }
  return tensors;
}

absl::Status CheckFinite(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      if (!std::isfinite(tensor.values[i])) {
        return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.source, ": element ", i, " is ",
                                                       tensor.values[i], "; weights must be finite"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise
