// The page: a fixed piece of the memory that holds the cached keys and values of a text. A text takes pages as it
// grows.
#ifndef EDGEWISE_KERNELS_KV_PAGE_H_
#define EDGEWISE_KERNELS_KV_PAGE_H_

#include <cstdint>

#include "kernels/draw/philox.h"  // EDGEWISE_HOST_DEVICE

namespace edgewise {

// The shape of a page of one layer: the keys, then the values, of kTokens tokens that follow each other, head by head.
struct KvPage {
  static constexpr int32_t kTokens = 64;

  int32_t heads = 0;  // that have keys and values
  int32_t head_dim = 0;

  int64_t floats() const { return Values(heads); }
  // The place of a head's keys and values, each [kTokens, head_dim].
  EDGEWISE_HOST_DEVICE int64_t Keys(int32_t head) const { return int64_t{head} * kTokens * head_dim; }
  EDGEWISE_HOST_DEVICE int64_t Values(int32_t head) const { return Keys(heads + head); }
};

// Row `row` of a matrix of keys and values is that of token `token` of a page.
struct PagePlace {
  float* page = nullptr;  // in the backend's memory
  int32_t token = 0;      // below KvPage::kTokens
  int32_t row = 0;
};

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_KV_PAGE_H_
