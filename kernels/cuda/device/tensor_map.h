// Maps of matrices of bf16 in device memory, which the copying engine (TMA) of sm_90 reads them by.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_TENSOR_MAP_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_TENSOR_MAP_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#if !defined(EDGEWISE_CUDA_EMULATED)
#include <cuda.h>
#endif

namespace edgewise::cuda {

#if defined(EDGEWISE_CUDA_EMULATED)
using TensorMap = emulator::TensorMap;
#else
using TensorMap = CUtensorMap;  // a parameter of a kernel: const __grid_constant__
#endif

// One copy takes kMapRows rows of kMapColumns columns, 128 bytes each.
inline constexpr int kMapRows = 64, kMapColumns = 64;

// Matrices [rows, columns], `row_stride` elements from row to row and `matrix_stride` from one to the next.
struct Matrices {
  const __nv_bfloat16* data;
  int64_t columns, rows, count;
  int64_t row_stride, matrix_stride;
};
// All is 16-byte aligned, and matrix_stride a multiple of row_stride. Any thread.
cudaError_t MakeTensorMap(const Matrices& of, TensorMap& map);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_TENSOR_MAP_H_
