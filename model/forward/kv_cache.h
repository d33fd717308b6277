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
// its own. Memory is taken for the tokens that there are, in pages (kernels/kv_page.h), where the backend takes pages.
// Elsewhere a layer is one matrix of the longest text. One thread at a time.
class KvCache {
 public:
  // `model` must outlive the cache, which holds `most_tokens` at most.
  KvCache(const Model& model, const Draw& draw, int64_t most_tokens);

  // The bytes that the cache takes for so many tokens, and holds now.
  uint64_t BytesFor(int64_t tokens) const { return static_cast<uint64_t>(HasMemoryFor(tokens)) * token_bytes_; }
  uint64_t bytes() const { return static_cast<uint64_t>(tokens_) * token_bytes_; }
  // Takes memory for so many tokens, where it has less. RESOURCE_EXHAUSTED: no memory.
  absl::Status Grow(int64_t tokens);
  // Gives back what so many tokens do not need.
  void Shrink(int64_t tokens);

  // Writes the keys and values of tokens to a layer, from packed token `first_token` on: those of a sample (counted
  // from 0), or of all samples where they share the layer. It has memory for them.
  absl::Status Store(int32_t layer, uint32_t copy, int32_t first_token, ConstMatrix keys_and_values);

  bool paged() const { return paged_; }
  // Paged: AttentionProblem::pages of a sample, until the cache grows or shrinks.
  const float* const* Pages(int32_t layer, uint32_t copy) const { return copies_[Copy(layer, copy)].places.data(); }
  // Not paged: the rows of all samples, and the row of a sample's token 0 in these.
  ConstMatrix Keys(int32_t layer) const { return Layer(layer).Columns(0, row_floats_ / 2); }
  ConstMatrix Values(int32_t layer) const { return Layer(layer).Columns(row_floats_ / 2, row_floats_ / 2); }
  int64_t FirstRow(int32_t layer, uint32_t copy) const { return layer <= first_drawn_ ? 0 : copy * most_tokens_; }

 private:
  // Of one layer, of one sample or of all that share it.
  struct PagesOfCopy {
    std::vector<Buffer> pages;
    std::vector<float*> places;  // of the pages
  };

  int64_t HasMemoryFor(int64_t tokens) const;  // that it takes for so many: at least as many
  uint32_t Copies(int32_t layer) const { return layer <= first_drawn_ ? 1 : samples_; }
  size_t Copy(int32_t layer, uint32_t copy) const;  // index into copies_
  Matrix Layer(int32_t layer) const { return layers_[layer].AsMatrix(Copies(layer) * most_tokens_, row_floats_); }

  Backend& backend_;
  const bool paged_;
  const int32_t num_layers_, first_drawn_;
  const uint32_t samples_;
  const KvPage page_;
  const int64_t most_tokens_;
  const int64_t row_floats_;         // of a token's keys and values in one layer
  const uint64_t token_bytes_;       // over all layers and copies
  int64_t tokens_ = 0;               // that it has memory for
  std::vector<PagesOfCopy> copies_;  // paged: shared layers, then layer by layer the samples
  std::vector<Buffer> layers_;       // else [num_layers], each [copies, most tokens, row_floats_]
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_KV_CACHE_H_
