#include "model/reserve.h"

#include <algorithm>

#include "model/forward/activations.h"
#include "model/forward/pass.h"
#include "model/kinds/patterns.h"

namespace edgewise {
namespace {

int64_t MaxRows() { return Pass::Options().max_wave_tokens; }

int64_t Width(const ModelConfig& config) { return static_cast<int64_t>(config.num_attention_heads) * config.head_dim; }

// Residual stream, its norm, query, key, value, and what attention gives: of one row.
int64_t RowFloats(const ModelConfig& config) { return 2 * config.hidden_size + 4 * Width(config); }

int64_t MembershipFloats(const ModelConfig& config, const ModelWeights& weights) {
  int64_t rank = -1;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.memberships != nullptr) rank = std::max<int64_t>(rank, layer.memberships->rank());
  }
  return rank < 0 ? 0 : 2 * config.num_attention_heads * (rank + 1);
}

// Of Activations::NextTokenLogits, or of Activations::Classify for sequences of one row.
int64_t OutputFloats(const ModelConfig& config, int64_t rows) {
  if (config.task == ModelTask::kCausalLm) {
    return LogitsAtOnce(config, rows) * (static_cast<int64_t>(config.hidden_size) + config.vocab_size);
  }
  const int64_t pooled = config.task == ModelTask::kTokenClassification ? 0
                         : config.task == ModelTask::kPairClassification
                             ? 3 * config.hidden_size  // and features of the pair
                             : config.hidden_size;
  return rows * (pooled + config.classifier_hidden_size + config.num_labels);
}

}  // namespace

absl::Status ReserveForPasses(const ModelConfig& config, const ModelWeights& weights, Backend& backend) {
  const int64_t rows = MaxRows();
  // The rows that samples share and those of each; keys and values of a call, which a GPU may round to half their
  // bytes.
  const int64_t of_row = 2 * (RowFloats(config) + MembershipFloats(config, weights)) + config.feature_size;
  return backend.Reserve(rows * (of_row + Width(config)) + OutputFloats(config, rows), 0);
}

absl::Status ReserveForGenerations(const Model& model, const GenerationLimits& limits) {
  const ModelConfig& config = model.config();
  if (config.task != ModelTask::kCausalLm || limits.generations == 0) return absl::OkStatus();
  const int64_t samples = std::clamp<int64_t>(static_cast<int64_t>(limits.samples), 1, MaxRows());
  const int64_t layers = config.num_hidden_layers;

  // The rows of a prompt, for all samples and for each; later one of each.
  const int64_t prompt = std::min<int64_t>(MaxRows(), config.max_position_embeddings);
  const int64_t wave = std::min(MaxRows(), prompt * samples);
  const int64_t rows =
      std::max((prompt + wave) * RowFloats(config), (1 + samples) * RowFloats(config) + OutputFloats(config, samples));

  // Doubles: whole generations may be more than there are bytes.
  const double of_layer = static_cast<double>(samples) * config.max_position_embeddings * 2 * Width(config);
  const double all = static_cast<double>(limits.generations) * static_cast<double>(layers) * of_layer;
  const double caches = std::min(all, static_cast<double>(limits.cache_bytes / sizeof(float)));
  // A call of attention has the cache of one layer. Samples share that of the first layer that draws and those below.
  const int64_t first_drawn = FirstDrawnLayer(config.attention);
  const double of_call = first_drawn + 1 < layers
                             ? std::min(of_layer, caches / static_cast<double>(layers - first_drawn - 1))
                             : std::min(of_layer / static_cast<double>(samples), caches);

  return model.backend().Reserve(0, rows + static_cast<int64_t>(caches + of_call / 2));
}

}  // namespace edgewise
