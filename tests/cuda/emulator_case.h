// Shared by the tests of the emulator: memory, orders, and a kernel that shows which threads ran.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_CASE_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_CASE_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {

// Memory that kernels write and tests read; the emulator has one kind.
template <typename T>
struct Buffer {
  explicit Buffer(size_t size) : size(size) { EXPECT_EQ(cudaMalloc(&data, size * sizeof(T)), cudaSuccess); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    EXPECT_EQ(cudaMemcpy(data, values.data(), size * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Buffer() { cudaFree(data); }
  std::vector<T> Read() const {
    std::vector<T> values(size);
    EXPECT_EQ(cudaMemcpy(values.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  T* data = nullptr;
  size_t size;
};

// Once in every order.
template <typename F>
void InEveryOrder(F f) {
  for (const emulator::Order order : {emulator::kForward, emulator::kBackward, emulator::Shuffled(7)}) {
    SCOPED_TRACE(order.kind);
    emulator::SetOrder(order);
    f();
  }
  emulator::SetOrder(emulator::kForward);
}

inline cudaError_t LaunchExtents(dim3 grid, dim3 block, size_t shared, void (*kernel)(unsigned*), unsigned* out) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return cudaLaunchKernelEx(&config, kernel, out);
}

// Adds i + 1 to the place i of every thread.
inline __global__ void CountIndices(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  atomicAdd(&out[i], i + 1);
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_CASE_H_
