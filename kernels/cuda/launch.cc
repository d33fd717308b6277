#include "kernels/cuda/launch.h"

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/graphs.h"

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

namespace {

thread_local uint64_t kernels_started = 0;

}  // namespace

void NoteStart(const void* kernel) {
  kernels_started = (kernels_started ^ reinterpret_cast<uintptr_t>(kernel)) * 0x9E3779B97F4A7C15u;
  kernels_started ^= kernels_started >> 29;
}

uint64_t KernelsStarted() { return std::exchange(kernels_started, 0); }

}  // namespace edgewise::cuda
