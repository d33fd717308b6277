// Products of few rows, bound by reading the weights.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_GEMV_H_
#define EDGEWISE_KERNELS_CUDA_OPS_GEMV_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/rows.h"
#include "kernels/tensor.h"

namespace edgewise::cuda {

// W, bias and activation; pointers are to device memory.
struct GemvWeights {
  const void* weight = nullptr;  // [out, in_padded], zeros beyond `in`, 16-byte aligned; float or bf16
  const float* bias = nullptr;   // [out] or null
  int64_t out = 0, in = 0;
  int64_t in_padded = 0;  // multiple of 8
  bool bf16 = false;      // of the weights; x is then rounded too
  Activation activation = Activation::kNone;
};

// y = activation(x W^T + bias), or with `accumulate` y = (x W^T + y) + bias without an activation. An element is summed
// in one order, whatever other rows there are.
cudaError_t GemvLinear(cudaStream_t stream, const GemvWeights& weights, ConstMatrix x, Matrix y, bool accumulate);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_GEMV_H_
