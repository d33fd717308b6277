// Queries that may be rounded already, and outputs in the form of what reads them next.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDED_CUH_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDED_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/ops/forms.cuh"

namespace edgewise::cuda {

// Precision bf16: two neighbouring numbers of a query, from an even place of q on.
__device__ inline uint32_t QueryPair(const DeviceCall& call, int64_t place) {
  if (call.q16 != nullptr) return *reinterpret_cast<const uint32_t*>(call.q16 + place);
  const float2 pair = *reinterpret_cast<const float2*>(call.q + place);
  return PackBf16(pair.x, pair.y);
}

// The columns of a head of a row of the output.
struct OutRow {
  const DeviceCall& call;
  int64_t row;
  int32_t head;

  // kWidth of them, from a multiple of kWidth on. kBf16: the precision.
  template <bool kBf16, int kWidth>
  __device__ void Put(int column, const float (&value)[kWidth]) const {
    const int64_t at = int64_t{head} * call.value_dim + column;
    constexpr Form kOther = kBf16 ? Form::kBfloat16 : Form::kParts;
    const bool plain = call.out_form == Form::kFloat32;
    Store<kWidth>({call.out, call.out_stride, plain ? Form::kFloat32 : kOther, call.out_slice}, row, at, value);
  }
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ROUNDED_CUH_
