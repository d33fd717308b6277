#include "model/forward/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "model/kinds/patterns.h"
#include "text/status_macros.h"

namespace edgewise {

uint64_t KvCache::Bytes(const ModelConfig& config, const Draw& draw, uint64_t tokens) {
  const uint64_t layers = static_cast<uint64_t>(config.num_hidden_layers);
  const uint64_t shared = std::min<uint64_t>(layers, static_cast<uint64_t>(FirstDrawnLayer(config, draw)) + 1);
  const uint64_t row = 2 * sizeof(float) * static_cast<uint64_t>(config.num_attention_heads) * config.head_dim;
  return (shared + (layers - shared) * draw.samples) * tokens * row;
}

KvCache::KvCache(const Model& model, const Draw& draw, int64_t tokens)
    : backend_(model.backend()),
      num_layers_(model.config().num_hidden_layers),
      first_drawn_(FirstDrawnLayer(model.config(), draw)),
      samples_(draw.samples),
      tokens_(tokens),
      width_(static_cast<int64_t>(model.config().num_attention_heads) * model.config().head_dim) {}

absl::Status KvCache::Allocate() {
  for (auto l = static_cast<int32_t>(layers_.size()); l < num_layers_; ++l) {
    ASSIGN_OR_RETURN(layers_.emplace_back(), backend_.Allocate(Copies(l) * tokens_ * 2 * width_));
  }
  return absl::OkStatus();
}

absl::Status KvCache::Store(int32_t layer, uint32_t copy, int32_t first_token, ConstMatrix keys_and_values) {
  const int64_t tokens = keys_and_values.rows;
  while (std::ssize(places_) < tokens) places_.push_back(std::ssize(places_));
  const Matrix to = Layer(layer).Rows(FirstRow(layer, copy) + first_token, tokens);
  return backend_.GatherRows(keys_and_values, std::span(places_).first(tokens), to);
}

}  // namespace edgewise
