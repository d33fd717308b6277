#include "kernels/cuda/device/launch.h"

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::cuda {
cudaError_t AllowShared(const void* kernel, size_t bytes) {
  static absl::Mutex mutex(absl::kConstInit);
  static std::map<std::pair<int, const void*>, size_t> allowed ABSL_GUARDED_BY(mutex);  // by device and kernel
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const absl::MutexLock lock(&mutex);
  size_t& most = allowed[{device, kernel}];
  if (most >= bytes) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

}  // namespace edgewise::cuda
