// MakeTensorMap (kernels/cuda/device/tensor_map.h) where the device is emulated.
#include "kernels/cuda/device/tensor_map.h"

namespace edgewise::cuda {

cudaError_t MakeTensorMap(const Matrices& of, TensorMap& map) {
  if (reinterpret_cast<uintptr_t>(of.data) % 16 != 0 || of.row_stride % 8 != 0 ||
      of.matrix_stride % of.row_stride != 0) {
    return cudaErrorInvalidValue;
  }
  map = {of.data, of.columns, of.rows, of.count, of.row_stride, of.matrix_stride};
  return cudaSuccess;
}

}  // namespace edgewise::cuda
