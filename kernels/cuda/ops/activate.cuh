// Activations of a product, element by element.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_ACTIVATE_CUH_
#define EDGEWISE_KERNELS_CUDA_OPS_ACTIVATE_CUH_

#include <cuda_runtime.h>

#include "kernels/activation.h"

namespace edgewise::cuda {

__device__ inline float Activate(Activation activation, float x) {
  if (activation == Activation::kRelu) return x > 0.0f ? x : (x != x ? x : 0.0f);
  if (activation == Activation::kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  if (activation == Activation::kGeluTanh) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
  if (activation == Activation::kTanh) return tanhf(x);
  if (activation == Activation::kSilu) return x / (1.0f + expf(-x));
  if (activation == Activation::kQuickGelu) return x / (1.0f + expf(-1.702f * x));
  if (activation == Activation::kMish) return x * tanhf(log1pf(expf(x)));
  return x;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_ACTIVATE_CUH_
