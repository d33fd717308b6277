#include "model/forward/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "model/kinds/patterns.h"

namespace edgewise {
namespace {

// The layers and samples that have keys and values of their own.
int64_t NumCopies(int64_t layers, int64_t first_drawn, int64_t samples) {
  const int64_t shared = std::min(layers, first_drawn + 1);
  return shared + (layers - shared) * samples;
}

int64_t PagesFor(int64_t tokens) { return (tokens + KvPage::kTokens - 1) / KvPage::kTokens; }

}  // namespace

KvCache::KvCache(const Model& model, const Draw& draw)
    : backend_(model.backend()),
      num_layers_(model.config().num_hidden_layers),
      first_drawn_(FirstDrawnLayer(model.config(), draw)),
      samples_(draw.samples),
      shape_{KeyValueHeads(model.config()), model.config().head_dim},
      page_floats_(backend_.CacheFloats(shape_.floats())) {}

uint64_t KvCache::BytesFor(int64_t tokens) const {
  const int64_t pages = NumCopies(num_layers_, first_drawn_, samples_) * PagesFor(tokens);
  return static_cast<uint64_t>(pages * page_floats_) * sizeof(float);
}

size_t KvCache::Copy(int32_t layer, uint32_t copy) const {
  if (layer <= first_drawn_) return static_cast<size_t>(layer);
  return static_cast<size_t>(first_drawn_ + 1) + static_cast<size_t>(layer - first_drawn_ - 1) * samples_ + copy;
}

absl::Status KvCache::Grow(int64_t tokens) {
  if (tokens <= tokens_) return absl::OkStatus();
  copies_.resize(static_cast<size_t>(NumCopies(num_layers_, first_drawn_, samples_)));
  while (std::ssize(blocks_) < PagesFor(tokens)) {
    ASSIGN_OR_RETURN(Buffer block, backend_.Allocate(std::ssize(copies_) * page_floats_));
    float* page = block.data();
    for (std::vector<float*>& copy : copies_) copy.push_back(std::exchange(page, page + page_floats_));
    memory_.push_back(block.data());
    blocks_.push_back(std::move(block));
  }
  tokens_ = PagesFor(tokens) * KvPage::kTokens;
  return absl::OkStatus();
}

void KvCache::Shrink(int64_t tokens) {
  const auto pages = static_cast<size_t>(PagesFor(tokens));
  if (pages >= blocks_.size()) return;
  tokens_ = static_cast<int64_t>(pages) * KvPage::kTokens;
  blocks_.resize(pages);
  memory_.resize(pages);
  for (std::vector<float*>& copy : copies_) copy.resize(pages);
}

}  // namespace edgewise
