// Writes the keys and values of tokens to the pages of their texts (kernels/kv_page.h).
#ifndef EDGEWISE_KERNELS_CUDA_OPS_PAGES_H_
#define EDGEWISE_KERNELS_CUDA_OPS_PAGES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/kv_page.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// Backend::StoreInPages in one launch, enqueued on `stream`. places [count], in device memory. With `bf16` pages are of
// __nv_bfloat16, rounded to the nearest. Rows of x begin at 16-byte addresses, and head_dim is a multiple of 8.
cudaError_t StoreInPages(cudaStream_t stream, ConstMatrix x, const KvPage& shape, const PagePlace* places,
                         int64_t count, bool bf16);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_PAGES_H_
