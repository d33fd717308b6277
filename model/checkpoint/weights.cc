#include "model/checkpoint/weights.h"

#include <cmath>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/decoder.h"
#include "model/checkpoint/weight_tables.h"

namespace edgewise {
namespace {

constexpr double kBlockSumTolerance = 1e-4;

// Reads tensors by name. Names and shapes have been checked.
class Loader {
 public:
  Loader(const ModelConfig& config, const NamedTensors& tensors, Backend& backend)
      : config_(config), tensors_(tensors), backend_(backend), head_dim_(AlignedHeadDim(config, backend)) {}

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  std::span<const float> Values(const std::string& name) const { return tensors_.at(name).values; }

  absl::Status LoadBuffer(std::span<const float> values, Buffer& out) {
    absl::StatusOr<Buffer> buffer = backend_.AllocateWeights(static_cast<int64_t>(values.size()));
    if (!buffer.ok()) return buffer.status();
    out = *std::move(buffer);
    return backend_.Upload(values, out.data());
  }

  absl::Status LoadNorm(const std::string& name, Norm& out) {
    const std::span<const float> weight = Values(name + ".weight");
    const absl::Status status = LoadBuffer(weight, out.weight);
    if (!status.ok() || config_.rms_norm) return status;
    const std::vector<float> zeros(weight.size(), 0.0f);
    return LoadBuffer(Has(name + ".bias") ? Values(name + ".bias") : zeros, out.bias);
  }

  // The product with tensor `name`, without bias.
  absl::Status LoadMatrix(const std::string& name, std::unique_ptr<LinearWeights>& out) {
    const std::vector<int64_t>& shape = tensors_.at(name).shape;
    auto linear = backend_.PrepareLinear(Values(name), {}, shape[0], shape[1], Activation::kNone);
    if (!linear.ok()) return linear.status();
    out = *std::move(linear);
    return absl::OkStatus();
  }

  absl::Status LoadLinear(const std::string& name, Activation activation, std::unique_ptr<LinearWeights>& out) {
    return Prepare(Values(name + ".weight"), BiasOf(name), tensors_.at(name + ".weight").shape[0], activation, out);
  }

  // The rows of the gate, then those of `up`.
  absl::Status LoadGated(const std::string& prefix, std::unique_ptr<LinearWeights>& out) {
    std::vector<float> weight, bias;
    for (const char* name : {"gate", "up"}) {
      const std::span<const float> rows = Values(prefix + name + ".weight"), more = BiasOf(prefix + name);
      weight.insert(weight.end(), rows.begin(), rows.end());
      bias.insert(bias.end(), more.begin(), more.end());
    }
    return Prepare(weight, bias, int64_t{2} * config_.intermediate_size, Activation::kNone, out);
  }

  // Query, key and value stacked into one product, and the output.
  absl::Status LoadProjections(size_t layer, LayerWeights& out) {
    const std::string prefix = LayerPrefix(layer) + "attention.";
    const auto stacked = [&](const std::string& part, int64_t inner) {
      return PadHeads({Values(prefix + "query" + part), Values(prefix + "key" + part), Values(prefix + "value" + part)},
                      inner);
    };
    const int64_t rows = int64_t{config_.num_attention_heads + 2 * KeyValueHeads(config_)} * head_dim_;
    absl::Status status = Prepare(stacked(".weight", config_.hidden_size),
                                  config_.projection_bias ? stacked(".bias", 1) : std::vector<float>(), rows,
                                  Activation::kNone, out.query_key_value);
    if (status.ok() && config_.head_norm) status = LoadHeadNorm(prefix + "query_norm.weight", out.query_norm);
    if (status.ok() && config_.head_norm) status = LoadHeadNorm(prefix + "key_norm.weight", out.key_norm);
    if (!status.ok()) return status;
    return Prepare(PadHeads({Values(prefix + "output.weight")}, 1), BiasOf(prefix + "output"), config_.hidden_size,
                   Activation::kNone, out.output);
  }

  // The mean of a head's squares is also of its zeros: here and in head_norm_eps is their share.
  absl::Status LoadHeadNorm(const std::string& name, Buffer& out) {
    std::vector<float> weight = PadHeads({Values(name)}, 1);
    const auto share = static_cast<float>(std::sqrt(static_cast<double>(config_.head_dim) / head_dim_));
    for (float& value : weight) value *= share;
    return LoadBuffer(weight, out);
  }

  absl::Status LoadMemberships(size_t layer, std::unique_ptr<MembershipWeights>& out) {
    const std::string prefix = LayerPrefix(layer) + "attention.";
    MembershipParameters parameters;
    parameters.num_heads = config_.num_attention_heads;
    parameters.head_dim = head_dim_;
    parameters.num_clusters = config_.attention[layer].num_clusters;
    const auto vector = [&](const std::string& name) { return PadHeads({Values(prefix + name)}, 1); };
    const auto matrix = [&](const std::string& name) { return PadHeads({vector(name)}, head_dim_); };
    const std::vector<float> weight0 = matrix("membership.0.weight"), bias0 = vector("membership.0.bias");
    const std::vector<float> weight1 = matrix("membership.1.weight"), bias1 = vector("membership.1.bias");
    const std::vector<float> clusters = vector("clusters");
    parameters.weight0 = weight0;
    parameters.bias0 = bias0;
    parameters.weight1 = weight1;
    parameters.bias1 = bias1;
    parameters.clusters = clusters;
    if (Has(prefix + "block_matrix")) {
      parameters.block_matrix = Values(prefix + "block_matrix");
      const absl::Status status = CheckBlockMatrix(prefix + "block_matrix", parameters);
      if (!status.ok()) return status;
    }
    auto memberships = backend_.PrepareMemberships(parameters);
    if (!memberships.ok()) return memberships.status();
    out = *std::move(memberships);
    return absl::OkStatus();
  }

  // The table that is added to the embedding, or by distance to the scores.
  absl::Status LoadPositions(ModelWeights& weights) {
    const int64_t positions = config_.max_position_embeddings;
    if (config_.relative_buckets > 0) {
      const absl::Status status =
          LoadBuffer(BucketBias(Values("embeddings.relative_buckets.weight"), config_.num_attention_heads, positions),
                     weights.distance_bias);
      if (!status.ok()) return status;
    }
    switch (config_.position_embedding) {
      case PositionEmbedding::kLearned: {
        const auto table = Values("embeddings.position.weight")
                               .subspan(static_cast<size_t>(config_.position_offset) * config_.hidden_size);
        if (config_.image.channels > 0) {
          return LoadBuffer(PatchPositions(table, Values("embeddings.cls"), Values("embeddings.features.bias")),
                            weights.position);
        }
        if (config_.token_types == 0) return LoadBuffer(table, weights.position);
        return LoadBuffer(TypedPositions(table, Values("embeddings.type.weight"), config_.hidden_size),
                          weights.position);
      }
      case PositionEmbedding::kSinusoidal:
        return LoadBuffer(SinusoidalPositions(positions, config_.hidden_size), weights.position);
      case PositionEmbedding::kRelative:
        return LoadBuffer(Values("embeddings.relative.weight"), weights.distance_bias);
      case PositionEmbedding::kAlibi:
        return LoadBuffer(AlibiBias(config_.num_attention_heads, positions), weights.distance_bias);
      case PositionEmbedding::kRotary:
        return LoadRotary(weights);
      case PositionEmbedding::kNone:
        break;
    }
    return absl::OkStatus();
  }

  // The tables of rotary positions, and which of them each layer has.
  absl::Status LoadRotary(ModelWeights& weights) {
    const std::pair<const Rotary*, Buffer*> tables[] = {{&config_.rotary, &weights.rotary},
                                                        {&config_.window_rotary, &weights.window_rotary}};
    for (const auto& [rotary, table] : tables) {
      if (rotary->angles.empty()) continue;
      std::vector<double> angles = rotary->angles;
      angles.resize(static_cast<size_t>(head_dim_) / 2, 0.0);
      const absl::Status status =
          LoadBuffer(RotaryTable(angles, rotary->factor, config_.max_position_embeddings), *table);
      if (!status.ok()) return status;
    }
    for (size_t l = 0; l < weights.layers.size(); ++l) {
      const bool own = config_.attention[l].reach != AllPairs::kFar && !config_.window_rotary.angles.empty();
      weights.layers[l].rotary = own ? weights.window_rotary.data() : weights.rotary.data();
    }
    return absl::OkStatus();
  }

  // The classifier, or the output layer of a language model.
  absl::Status LoadOutput(ModelWeights& weights) {
    if (config_.task == ModelTask::kCausalLm) {
      return LoadMatrix(config_.tie_word_embeddings ? "embeddings.word.weight" : "lm_head.weight", weights.lm_head);
    }
    if (config_.classifier_hidden_size > 0) {
      absl::Status status = LoadLinear("classifier.hidden", config_.classifier_act, weights.classifier_hidden);
      if (status.ok() && config_.classifier_norm) status = LoadNorm("classifier.norm", weights.classifier_norm);
      if (!status.ok()) return status;
    }
    for (const DenseLayer& layer : config_.dense) {
      const std::string name = absl::StrCat("dense.", weights.dense.size());
      const absl::Status status = LoadLinear(name, layer.activation, weights.dense.emplace_back());
      if (!status.ok()) return status;
    }
    if (config_.task == ModelTask::kEmbedding) return absl::OkStatus();
    return LoadLinear("classifier.output", Activation::kNone, weights.classifier_output);
  }

 private:
  static absl::Status CheckBlockMatrix(const std::string& name, const MembershipParameters& parameters) {
    const size_t square = static_cast<size_t>(parameters.num_clusters) * parameters.num_clusters;
    for (size_t head = 0; head * square < parameters.block_matrix.size(); ++head) {
      double sum = 0.0;
      for (size_t i = 0; i < square; ++i) {
        const float value = parameters.block_matrix[head * square + i];
        if (value < 0.0f) {
          return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": entry ", i, " of head ", head, " is ",
                                                         value, "; at least 0 is expected"));
        }
        sum += value;
      }
      if (sum > 1.0 + kBlockSumTolerance) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", name, ": head ", head, " sums to ", sum, "; at most 1 is expected"));
      }
    }
    return absl::OkStatus();
  }

  // Tensors, one behind the other, whose dimension head_dim is followed by dimensions of `inner` values: with zeros up
  // to head_dim_. Halves that rotate get their zeros each.
  std::vector<float> PadHeads(const std::vector<std::span<const float>>& tensors, int64_t inner) const {
    const int64_t parts = config_.position_embedding == PositionEmbedding::kRotary ? 2 : 1;
    const size_t run = config_.head_dim * inner / parts, zeros = (head_dim_ - config_.head_dim) * inner / parts;
    std::vector<float> padded;
    for (const std::span<const float> values : tensors) {
      for (size_t i = 0; i < values.size(); i += run) {
        padded.insert(padded.end(), &values[i], &values[i] + run);
        padded.resize(padded.size() + zeros, 0.0f);
      }
    }
    return padded;
  }

  // Empty: it has none.
  std::span<const float> BiasOf(const std::string& name) const {
    return Has(name + ".bias") ? Values(name + ".bias") : std::span<const float>();
  }

  absl::Status Prepare(std::span<const float> weight, std::span<const float> bias, int64_t rows, Activation activation,
                       std::unique_ptr<LinearWeights>& out) {
    auto linear = backend_.PrepareLinear(weight, bias, rows, static_cast<int64_t>(weight.size()) / rows, activation);
    if (!linear.ok()) return linear.status();
    out = *std::move(linear);
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const NamedTensors& tensors_;
  Backend& backend_;
  const int32_t head_dim_;  // as the backend takes it
};

}  // namespace

int32_t AlignedHeadDim(const ModelConfig& config, const Backend& backend) {
  const int32_t alignment = backend.HeadAlignment();
  return (config.head_dim + alignment - 1) / alignment * alignment;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelConfig& config, SafetensorsFile& file,
                                                          Backend& backend, const RunWork& use_backend) {
  absl::Status status = CheckTensors(config, file);
  if (status.ok()) status = file.ReadData();
  if (!status.ok()) return status;
  return PlaceWeights(config, TensorsOf(file), backend, use_backend);
}

absl::StatusOr<std::unique_ptr<ModelWeights>> PlaceWeights(const ModelConfig& config, const NamedTensors& tensors,
                                                           Backend& backend, const RunWork& use_backend) {
  absl::Status status = CheckFinite(tensors);
  if (!status.ok()) return status;
  auto weights = std::make_unique<ModelWeights>();
  Loader loader(config, tensors, backend);
  weights->head_norm_eps = config.layer_norm_eps *
                           (static_cast<float>(config.head_dim) / static_cast<float>(AlignedHeadDim(config, backend)));
  // Runs a step unless a step before it failed.
  auto load = [&](const auto& step) {
    if (status.ok()) status = use_backend(step);
  };
  if (config.image.channels > 0) {
    load([&] { return loader.LoadMatrix("embeddings.features.weight", weights->features); });
  } else if (config.feature_size > 0) {
    load([&] { return loader.LoadLinear("embeddings.features", Activation::kNone, weights->features); });
  } else {
    load([&] { return loader.LoadBuffer(loader.Values("embeddings.word.weight"), weights->word); });
  }
  const size_t layers = config.tied_layers ? 1 : config.num_hidden_layers;
  weights->layers.resize(layers);
  load([&] { return loader.LoadPositions(*weights); });
  if (config.embedding_norm) load([&] { return loader.LoadNorm("embeddings.norm", weights->embedding_norm); });
  if (config.pairwise_bias == PairwiseBiasKind::kBuckets) {
    weights->pairwise_table =
        PairwiseTable(loader.Values("embeddings.pairwise.weight"), config.num_attention_heads, config.num_buckets);
  }
  for (size_t l = 0; l < layers; ++l) {
    LayerWeights& layer = weights->layers[l];
    const std::string prefix = LayerPrefix(l);
    if (loader.Has(prefix + "attention_norm.weight")) {
      load([&] { return loader.LoadNorm(prefix + "attention_norm", layer.attention_norm); });
    }
    load([&] { return loader.LoadProjections(l, layer); });
    if (loader.Has(prefix + "attention.clusters")) load([&] { return loader.LoadMemberships(l, layer.memberships); });
    if (loader.Has(prefix + "attention.block_scores")) {
      const std::span<const float> scores = loader.Values(prefix + "attention.block_scores");
      layer.block_scores.assign(scores.begin(), scores.end());
    }
    load([&] { return loader.LoadNorm(prefix + "mlp_norm", layer.mlp_norm); });
    load([&] {
      return config.gated ? loader.LoadGated(prefix + "mlp.", layer.up)
                          : loader.LoadLinear(prefix + "mlp.up", config.hidden_act, layer.up);
    });
    load([&] { return loader.LoadLinear(prefix + "mlp.down", Activation::kNone, layer.down); });
  }
  if (config.norm_position == NormPosition::kPre) {
    load([&] { return loader.LoadNorm("final_norm", weights->final_norm); });
  }
  load([&] { return loader.LoadOutput(*weights); });
  load([&] {
    absl::StatusOr<std::unique_ptr<PreparedDecoder>> decoder = PrepareDecoder(config, *weights, backend);
    if (!decoder.ok()) return decoder.status();
    weights->decoder = *std::move(decoder);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return weights;
}

}  // namespace edgewise
