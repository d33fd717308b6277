#include "kernels/cuda/device/kernel_list.h"

#include <vector>

namespace edgewise::cuda {
namespace {

// Made when it is first needed: constants of other files add to it in no order.
std::vector<const void*>& Kernels() {
  static auto* const kernels = new std::vector<const void*>;
  return *kernels;
}

}  // namespace

void ListKernel(const void* kernel) { Kernels().push_back(kernel); }

cudaError_t LoadKernels() {
  for (const void* kernel : Kernels()) {
    cudaFuncAttributes attributes = {};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace edgewise::cuda
