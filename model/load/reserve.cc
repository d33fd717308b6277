#include "model/load/reserve.h"

#include <algorithm>

#include "kernels/kv_page.h"
#include "model/forward/activations.h"
#include "model/forward/generation.h"
#include "model/forward/heads.h"
#include "model/forward/wave.h"

namespace edgewise {
namespace {

// Floats of the keys, or the values, of a token.
int64_t Width(const ModelConfig& config) { return static_cast<int64_t>(KeyValueHeads(config)) * config.head_dim; }

}  // namespace

absl::Status ReserveForPasses(const Model& model) {
  // The rows that samples share and those of each; keys and values of a call, which a GPU may round to half their
  // bytes.
  const int64_t of_row = 2 * Activations::FloatsPerRow(model) + Width(model.config());
  return model.backend().Reserve(kMaxWaveTokens * of_row + HeadFloats(model.config(), kMaxWaveTokens), 0);
}

absl::Status ReserveForGenerations(const Model& model, const GenerationLimits& limits) {
  const ModelConfig& config = model.config();
  if (config.task != ModelTask::kCausalLm || limits.generations == 0) return absl::OkStatus();
  const int64_t samples = std::clamp<int64_t>(static_cast<int64_t>(limits.samples), 1, kMaxWaveTokens);
  const int64_t layers = config.num_hidden_layers;

  // The rows of a prompt, for all samples and for each; and beside it those of a step that decodes.
  const int64_t prompt = std::min<int64_t>(kMaxWaveTokens, config.max_position_embeddings);
  const int64_t wave = std::min(kMaxWaveTokens, prompt * samples);
  const int64_t step = std::max(kRowsTogether, samples + kShortPromptRows);
  const int64_t rows = (prompt + wave + 2 * step) * Activations::FloatsPerRow(model) + HeadFloats(config, step);

  // Doubles: whole generations may be more than there are bytes.
  const auto of_token = static_cast<double>(samples * layers * model.backend().CacheFloats(2 * Width(config)));
  const int64_t tokens = (config.max_position_embeddings + KvPage::kTokens - 1) / KvPage::kTokens * KvPage::kTokens;
  const double all = static_cast<double>(limits.generations) * static_cast<double>(tokens) * of_token;
  const double caches = std::min(all, static_cast<double>(limits.cache_bytes) / sizeof(float));
  return model.backend().Reserve(0, rows + static_cast<int64_t>(caches));
}

}  // namespace edgewise
