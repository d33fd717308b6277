#include <cuda_bf16.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/pages.h"

namespace edgewise::cuda {
namespace {

constexpr int kThreads = 256;

// A block has one row.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    StoreKernel(const float* x, int64_t stride, KvPage shape, const PagePlace* places) {
  const PagePlace place = places[blockIdx.x];
  const float* const row = x + place.row * stride;
  auto* const page = reinterpret_cast<Element*>(place.page);
  const int columns = 2 * shape.heads * shape.head_dim;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < columns; c += 4 * kThreads) {
    const int part = c / shape.head_dim;
    StoreFour(page + (part * KvPage::kTokens + place.token) * shape.head_dim + c - part * shape.head_dim,
              LoadFloats<4>(row + c));
  }
}

}  // namespace

cudaError_t StoreInPages(cudaStream_t stream, ConstMatrix x, const KvPage& shape, const PagePlace* places,
                         int64_t count, bool bf16) {
  return Launch(stream, count, kThreads, 0, bf16 ? kLoaded<StoreKernel<__nv_bfloat16>> : kLoaded<StoreKernel<float>>,
                x.data, x.stride, shape, places);
}

}  // namespace edgewise::cuda
