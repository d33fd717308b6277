// Launches kernels. Included by .cu files only.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_LAUNCH_H_
#define EDGEWISE_KERNELS_CUDA_DEVICE_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/device/kernel_list.h"

namespace edgewise::cuda {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
inline constexpr int kWarpSize = 32;
// Bytes of dynamic shared memory that never need the attribute: a block gets 48 KB without it, static memory included.
inline constexpr size_t kSharedWithoutAsking = 32 << 10;

// Lets `kernel` have `bytes` of dynamic shared memory on the current device from now on, or more if it already had
// more. Any thread.
cudaError_t AllowShared(const void* kernel, size_t bytes);

// The block's dynamic shared memory, 16-byte aligned.
__device__ inline unsigned char* DynamicShared() {
#ifdef EDGEWISE_CUDA_EMULATED
  return emulator::DynamicShared();
#else
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return dynamic_shared;
#endif
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchWith(const cudaLaunchConfig_t& given, int64_t blocks, int threads, size_t shared_bytes,
                       void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (blocks <= 0) return cudaSuccess;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  if (shared_bytes > kSharedWithoutAsking) {
    const cudaError_t error = AllowShared(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = given;
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// Enqueues `kernel` over `blocks` blocks of `threads` threads; nothing where there are no blocks. More blocks than
// 2^31 - 1 are an error of the launch.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, int64_t blocks, int threads, size_t shared_bytes, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  return LaunchWith(config, blocks, threads, shared_bytes, kernel, std::forward<Arguments>(arguments)...);
}

// As Launch, but on compute capability 9.0 or more the kernel may start before the one before has ended: until it waits
// (griddepcontrol.wait), it reads nothing that kernels write.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchBehind(cudaStream_t stream, int64_t blocks, int threads, size_t shared_bytes,
                         void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.stream = stream;
#ifndef EDGEWISE_CUDA_EMULATED
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
#endif
  return LaunchWith(config, blocks, threads, shared_bytes, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_LAUNCH_H_
