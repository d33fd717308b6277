// Tensor-core products of one warp.
#ifndef EDGEWISE_KERNELS_CUDA_MMA_CUH_
#define EDGEWISE_KERNELS_CUDA_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace edgewise::cuda {

// D [16, 8] float32 += A [16, 16] bf16 times B [16, 8] bf16, by the 32 threads of a warp together. With g = lane / 4 and
// t = lane % 4 a thread holds
//   d: rows g, g, g + 8, g + 8, columns 2t, 2t + 1, 2t, 2t + 1;
//   a: pairs of columns (2t, 2t + 1) of row g, of row g + 8, then columns (2t + 8, 2t + 9) of both, low half first;
//   b: pairs of rows (2t, 2t + 1) and (2t + 8, 2t + 9) of column g, low half first.
__device__ inline void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#if defined(EDGEWISE_CUDA_EMULATED)
  emulator::MmaBf16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Two floats as a pair of bf16, `low` in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat16 l = __float2bfloat16_rn(low), h = __float2bfloat16_rn(high);
  return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&l)) |
         static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&h)) << 16;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_MMA_CUH_
