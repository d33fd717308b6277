// The cached keys and values of one generation: those of its earlier tokens, in every layer.
#ifndef EDGEWISE_MODEL_FORWARD_KV_CACHE_H_
#define EDGEWISE_MODEL_FORWARD_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/kv_page.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

// The samples share the cache of the first drawn layer and of the layers below it; above it each sample has a copy of
// its own. Memory is taken for the tokens that there are, in pages (kernels/kv_page.h). One thread at a time.
class KvCache {
 public:
  // `model` must outlive the cache.
  KvCache(const Model& model, const Draw& draw);

  // The bytes that the cache takes for `tokens` tokens, and holds now.
  uint64_t BytesFor(int64_t tokens) const;
  uint64_t bytes() const { return BytesFor(tokens_); }
  // Takes memory for `tokens` tokens, where it has less. RESOURCE_EXHAUSTED: no memory.
  absl::Status Grow(int64_t tokens);
  // Gives back the memory that `tokens` tokens do not need.
  void Shrink(int64_t tokens);

  const KvPage& shape() const { return shape_; }
  // AttentionProblem::pages of a sample (counted from 0), or of all samples where they share the layer; until the cache
  // grows or shrinks.
  const float* const* Pages(int32_t layer, uint32_t copy) const { return copies_[Copy(layer, copy)].data(); }
  // DecodedRow::pages, where the samples share all layers; until the cache grows or shrinks.
  const float* const* Memory() const { return memory_.data(); }
  // Where the keys and values of a token go. The cache has memory for it.
  PagePlace PlaceOf(int32_t layer, uint32_t copy, int32_t token) const {
    return {copies_[Copy(layer, copy)][token / KvPage::kTokens], token % KvPage::kTokens};
  }

 private:
  size_t Copy(int32_t layer, uint32_t copy) const;  // index into copies_

  Backend& backend_;
  const int32_t num_layers_, first_drawn_;
  const uint32_t samples_;
  const KvPage shape_;
  const int64_t page_floats_;
  int64_t tokens_ = 0;                       // that it has memory for
  std::vector<Buffer> blocks_;               // pages of the same 64 tokens, copy by copy
  std::vector<const float*> memory_;         // of the blocks
  std::vector<std::vector<float*>> copies_;  // pages: of shared layers, then layer by layer of the samples
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_KV_CACHE_H_
