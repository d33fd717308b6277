#include "model/forward/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "model/kinds/patterns.h"
#include "text/status_macros.h"

namespace edgewise {
namespace {

// The layers and samples that have keys and values of their own.
int64_t NumCopies(int64_t layers, int64_t first_drawn, int64_t samples) {
  const int64_t shared = std::min(layers, first_drawn + 1);
  return shared + (layers - shared) * samples;
}

int64_t PagesFor(int64_t tokens) { return (tokens + KvPage::kTokens - 1) / KvPage::kTokens; }

}  // namespace

KvCache::KvCache(const Model& model, const Draw& draw, int64_t most_tokens)
    : backend_(model.backend()),
      paged_(backend_.TakesPages()),
      num_layers_(model.config().num_hidden_layers),
      first_drawn_(FirstDrawnLayer(model.config(), draw)),
      samples_(draw.samples),
      page_{KeyValueHeads(model.config()), model.config().head_dim},
      most_tokens_(most_tokens),
      row_floats_(backend_.CacheFloats(int64_t{2} * page_.heads * page_.head_dim)),
      token_bytes_(static_cast<uint64_t>(NumCopies(num_layers_, first_drawn_, samples_) * row_floats_) *
                   sizeof(float)) {}

int64_t KvCache::HasMemoryFor(int64_t tokens) const {
  if (tokens == 0) return 0;
  return paged_ ? PagesFor(tokens) * KvPage::kTokens : most_tokens_;
}

size_t KvCache::Copy(int32_t layer, uint32_t copy) const {
  if (layer <= first_drawn_) return static_cast<size_t>(layer);
  return static_cast<size_t>(first_drawn_ + 1) + static_cast<size_t>(layer - first_drawn_ - 1) * samples_ + copy;
}

absl::Status KvCache::Grow(int64_t tokens) {
  if (tokens <= tokens_) return absl::OkStatus();
  if (paged_) {
    copies_.resize(static_cast<size_t>(NumCopies(num_layers_, first_drawn_, samples_)));
    for (PagesOfCopy& copy : copies_) {
      while (std::ssize(copy.pages) < PagesFor(tokens)) {
        ASSIGN_OR_RETURN(Buffer page, backend_.Allocate(page_.floats()));
        copy.places.push_back(page.data());
        copy.pages.push_back(std::move(page));
      }
    }
  } else {
    for (auto l = static_cast<int32_t>(layers_.size()); l < num_layers_; ++l) {
      ASSIGN_OR_RETURN(layers_.emplace_back(), backend_.Allocate(Copies(l) * most_tokens_ * row_floats_));
    }
  }
  tokens_ = HasMemoryFor(tokens);
  return absl::OkStatus();
}

void KvCache::Shrink(int64_t tokens) {
  tokens_ = std::min(tokens_, HasMemoryFor(tokens));
  if (tokens_ == 0) layers_.clear();
  for (PagesOfCopy& copy : copies_) {
    copy.pages.resize(std::min(copy.pages.size(), static_cast<size_t>(PagesFor(tokens_))));
    copy.places.resize(copy.pages.size());
  }
}

absl::Status KvCache::Store(int32_t layer, uint32_t copy, int32_t first_token, ConstMatrix keys_and_values) {
  const int64_t tokens = keys_and_values.rows;
  if (!paged_) {
    return backend_.StoreInCache(keys_and_values, Layer(layer).Rows(FirstRow(layer, copy) + first_token, tokens));
  }
  const std::vector<float*>& pages = copies_[Copy(layer, copy)].places;
  for (int64_t done = 0; done < tokens;) {
    const int64_t token = first_token + done, in_page = token % KvPage::kTokens;
    const int64_t rows = std::min(KvPage::kTokens - in_page, tokens - done);
    RETURN_IF_ERROR(
        backend_.StoreInPage(keys_and_values.Rows(done, rows), page_, pages[token / KvPage::kTokens], in_page));
    done += rows;
  }
  return absl::OkStatus();
}

}  // namespace edgewise
