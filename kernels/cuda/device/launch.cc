#include "kernels/cuda/device/launch.h"

#include <map>
#include <mutex>

namespace edgewise::cuda {

cudaError_t AllowShared(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;  // by device and kernel
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  size_t& most = allowed[{device, kernel}];
  if (most >= bytes) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

}  // namespace edgewise::cuda
