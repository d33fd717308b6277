// What follows a product, element by element.
#ifndef EDGEWISE_KERNELS_CUDA_EPILOGUE_CUH_
#define EDGEWISE_KERNELS_CUDA_EPILOGUE_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/rows.h"

namespace edgewise::cuda {

// GELU is the exact one.
__device__ inline float ApplyEpilogue(Epilogue epilogue, float x) {
  if (epilogue == Epilogue::kRelu) return x > 0.0f ? x : (x != x ? x : 0.0f);
  if (epilogue == Epilogue::kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  return x;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_EPILOGUE_CUH_
