// All kernels of the backend, so that they can be loaded before the first request. Otherwise CUDA loads a kernel when
// it is launched for the first time, and may then take device memory or wait for all work.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_KERNEL_LIST_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_KERNEL_LIST_H_

#include <cuda_runtime.h>

namespace edgewise::cuda {

// Adds a kernel to the list. Only while the program starts or the module is opened.
void ListKernel(const void* kernel);

template <typename... Parameters>
auto Listed(void (*kernel)(Parameters...)) {
  ListKernel(reinterpret_cast<const void*>(kernel));
  return kernel;
}
// `kernel`, which is in the list. The backend names its launches by this.
template <auto kernel>
inline const auto kLoaded = Listed(kernel);

// Loads every kernel of the list on the current device.
cudaError_t LoadKernels();

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_KERNEL_LIST_H_
