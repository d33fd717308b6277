// How a kernel learns that a problem has been cancelled.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"

namespace edgewise::cuda {

// Called by all threads of a block together, which get the same answer: one thread reads the flag for all, since the
// flag may change between two reads. A block barrier where the problem has a flag.
__device__ inline bool Cancelled(const DeviceProblem& problem) {
  if (problem.cancel == nullptr) return false;
  const bool raised = threadIdx.x == 0 && *static_cast<const volatile int32_t*>(problem.cancel) != 0;
  return __syncthreads_or(raised ? 1 : 0) != 0;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
