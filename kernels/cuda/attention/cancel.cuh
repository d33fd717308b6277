// How a kernel learns that a problem has been cancelled.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// Called by all threads of a block together, which get the same answer: one thread reads the flag for all, since the
// flag may change between two reads. A block barrier where the problem has a flag.
__device__ inline bool Cancelled(const DeviceProblem& problem) {
  if (problem.cancel == nullptr) return false;
  const bool raised = threadIdx.x == 0 && *static_cast<const volatile int32_t*>(problem.cancel) != 0;
  return __syncthreads_or(raised ? 1 : 0) != 0;
}

// The same by all threads of a warp together, without a barrier.
__device__ inline bool CancelledForWarp(const DeviceProblem& problem) {
  if (problem.cancel == nullptr) return false;
  const bool raised = threadIdx.x % kWarpSize == 0 && *static_cast<const volatile int32_t*>(problem.cancel) != 0;
  return __any_sync(kWholeWarp, raised) != 0;
}

// Whether nobody needs the edges of a cancelled problem either: its ledger and its graph stay correct. As Cancelled.
__device__ inline bool Dropped(const DeviceProblem& problem) {
  return problem.cap < 0 && !problem.wants_graph && Cancelled(problem);
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_CANCEL_CUH_
