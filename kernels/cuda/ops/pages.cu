#include <cuda_bf16.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/pages.h"

namespace edgewise::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline void MoveFour(float* to, const float* from) { StoreFour(to, LoadFloats<4>(from)); }
__device__ inline void MoveFour(__nv_bfloat16* to, const float* from) { StoreFour(to, LoadFloats<4>(from)); }
__device__ inline void MoveFour(__nv_bfloat16* to, const __nv_bfloat16* from) {
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
}

// A block has one row. `stride`: elements of x.
template <typename Element, typename Source>
__global__ void __launch_bounds__(kThreads)
    StoreKernel(const Source* x, int64_t stride, KvPage shape, const PagePlace* places) {
  const PagePlace place = places[blockIdx.x];
  const Source* const row = x + place.row * stride;
  auto* const page = reinterpret_cast<Element*>(place.page);
  const int columns = 2 * shape.heads * shape.head_dim;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < columns; c += 4 * kThreads) {
    const int part = c / shape.head_dim;
    MoveFour(page + (part * KvPage::kTokens + place.token) * shape.head_dim + c - part * shape.head_dim, row + c);
  }
}

}  // namespace

cudaError_t StoreInPages(cudaStream_t stream, ConstMatrix x, const KvPage& shape, const PagePlace* places,
                         int64_t count, bool bf16) {
  if (x.form == Form::kBfloat16) {
    return Launch(stream, count, kThreads, 0, kLoaded<StoreKernel<__nv_bfloat16, __nv_bfloat16>>,
                  reinterpret_cast<const __nv_bfloat16*>(x.data), 2 * x.stride, shape, places);
  }
  return Launch(stream, count, kThreads, 0,
                bf16 ? kLoaded<StoreKernel<__nv_bfloat16, float>> : kLoaded<StoreKernel<float, float>>, x.data,
                x.stride, shape, places);
}

}  // namespace edgewise::cuda
