// Products of few rows, which are bound by reading the weights. Plain data and function pointers, one per instruction
// set.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_LINEAR_KERNELS_H_
#define EDGEWISE_KERNELS_CPU_SIMD_LINEAR_KERNELS_H_

#include <cstdint>

#include "kernels/activation.h"

namespace edgewise {

// Some columns of y = activation(x W^T + bias), or of y += x W^T + bias. An element is one chain of multiply-adds in
// the order of `in`, so that neither the rows nor the columns beside it change a bit.
struct Gemv {
  int64_t rows = 0, in = 0;
  int columns = 0;  // at most 64; all 16-column groups but the matrix's last are whole
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [in, columns], rows weight_stride apart
  int64_t weight_stride = 0;
  int readable = 0;             // columns of `weight` that may be read, >= columns
  const float* bias = nullptr;  // [columns] or null
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
  Activation activation = Activation::kNone;
};

using GemvKernel = void (*)(const Gemv&);

GemvKernel GenericGemv();
#if defined(__x86_64__)
GemvKernel Avx2Gemv();
GemvKernel Avx512Gemv();
#endif

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_LINEAR_KERNELS_H_
