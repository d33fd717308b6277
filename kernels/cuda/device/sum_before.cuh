// Sums over the threads of a block.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_SUM_BEFORE_CUH_
#define EDGEWISE_KERNELS_CUDA_DEVICE_SUM_BEFORE_CUH_

#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

inline constexpr int kSumThreads = kWarpSize * kWarpSize;  // of a block that calls SumBefore

// The sum of `value` over the threads before this one; `all`: over the block. Two block barriers. `of_warp` [kWarpSize]
// in shared memory.
template <typename T>
__device__ T SumBefore(T value, T* of_warp, T* all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const auto through = [lane](T sum) {
    for (int step = 1; step < kWarpSize; step *= 2) {
      const T before = __shfl_up_sync(kWholeWarp, sum, static_cast<unsigned>(step));
      if (lane >= step) sum += before;
    }
    return sum;
  };
  const T own = through(value);
  if (lane == kWarpSize - 1) of_warp[warp] = own;
  __syncthreads();
  const T warps = through(of_warp[lane]);
  *all = __shfl_sync(kWholeWarp, warps, kWarpSize - 1);
  const T before = __shfl_sync(kWholeWarp, warps - of_warp[lane], warp);
  __syncthreads();
  return before + own - value;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_SUM_BEFORE_CUH_
