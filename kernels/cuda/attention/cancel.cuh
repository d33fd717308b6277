// How a kernel learns that nobody wants a problem's results any more.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"

namespace edgewise::cuda {

// The same answer for all threads of the block, which call it together: the flag may change between two threads' reads,
// so that one of them reads it for all. A block barrier where the problem has a flag.
__device__ inline bool Cancelled(const DeviceProblem& problem) {
  if (problem.cancel == nullptr) return false;
  const bool raised = threadIdx.x == 0 && *static_cast<const volatile int32_t*>(problem.cancel) != 0;
  return __syncthreads_or(raised ? 1 : 0) != 0;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
