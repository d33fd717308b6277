// The cached keys and values of one generation: those of its earlier tokens, in every layer.
#ifndef EDGEWISE_MODEL_FORWARD_KV_CACHE_H_
#define EDGEWISE_MODEL_FORWARD_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

// The samples share the cache of the first drawn layer and of the layers below it; above it each sample has a copy of
// its own. One thread at a time.
class KvCache {
 public:
  // The bytes that a cache of `tokens` takes for these draws.
  static uint64_t Bytes(const ModelConfig& config, const Draw& draw, uint64_t tokens);

  // `model` must outlive the cache.
  KvCache(const Model& model, const Draw& draw, int64_t tokens);
  // Before the other methods; does nothing where the cache has its memory. RESOURCE_EXHAUSTED: no memory.
  absl::Status Allocate();
  // Gives the memory back.
  void Free() { layers_.clear(); }

  // Writes the keys and values of tokens to a layer, from packed token `first_token` on: those of a sample (counted
  // from 0), or of all samples where they share the layer.
  absl::Status Store(int32_t layer, uint32_t copy, int32_t first_token, ConstMatrix keys_and_values);

  ConstMatrix Keys(int32_t layer) const { return Layer(layer).Columns(0, width_); }
  ConstMatrix Values(int32_t layer) const { return Layer(layer).Columns(width_, width_); }
  // The row of a sample's token 0 in these.
  int64_t FirstRow(int32_t layer, uint32_t copy) const { return layer <= first_drawn_ ? 0 : copy * tokens_; }

 private:
  uint32_t Copies(int32_t layer) const { return layer <= first_drawn_ ? 1 : samples_; }
  Matrix Layer(int32_t layer) const { return layers_[layer].AsMatrix(Copies(layer) * tokens_, 2 * width_); }

  Backend& backend_;
  const int32_t num_layers_, first_drawn_;
  const uint32_t samples_;
  const int64_t tokens_, width_;
  std::vector<Buffer> layers_;   // [num_layers], each [copies, tokens, keys and values]
  std::vector<int64_t> places_;  // 0, 1, ...: the rows of what is stored
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_KV_CACHE_H_
