#include "kernels/cuda/device/tensor_map.h"

namespace edgewise::cuda {
namespace {

// The driver's, so that the module needs no library of it.
decltype(&cuTensorMapEncodeTiled) Encoder() {
  static const auto encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found) : nullptr;
  }();
  return encoder;
}

}  // namespace

cudaError_t MakeTensorMap(const Matrices& of, TensorMap& map) {
  const auto encode = Encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const auto extent = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t extents[] = {extent(of.columns), extent(of.rows), extent(of.count)};
  const cuuint64_t strides[] = {extent(of.row_stride) * sizeof(*of.data), extent(of.matrix_stride) * sizeof(*of.data)};
  const cuuint32_t box[] = {kMapColumns, kMapRows, 1}, steps[] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16*>(of.data), extents, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace edgewise::cuda
