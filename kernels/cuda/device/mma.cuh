// Tensor-core products of one warp.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_MMA_CUH_
#define EDGEWISE_KERNELS_CUDA_DEVICE_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace edgewise::cuda {

// D [16, 8] float32 += A [16, 16] bf16 times B [16, 8] bf16, by the 32 threads of a warp together. With g = lane / 4
// and t = lane % 4 a thread holds
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

// As MmaBf16, of halves.
__device__ inline void MmaHalf(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#if defined(EDGEWISE_CUDA_EMULATED)
  emulator::MmaHalf(d, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// D [16, 8] float32 += A [16, 8] tf32 times B [8, 8] tf32, whose low 13 bits are zero (ToTf32). A thread holds d as
// above;
//   a: columns t, t, t + 4, t + 4 of rows g, g + 8, g, g + 8;
//   b: rows t and t + 4 of column g.
__device__ inline void MmaTf32(float d[4], const float (&a)[4], float b0, float b1) {
#if defined(EDGEWISE_CUDA_EMULATED)
  const float b[2] = {b0, b1};
  emulator::MmaTf32(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
#endif
}

// Towards zero, by less than 2^-10 of itself.
__device__ inline float ToTf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000u); }

// Four matrices [8, 8] of bf16 from shared memory, by the 32 threads of a warp together: `row` of lane 8 m + r is where
// row r of matrix m begins, 16-byte aligned. With g and t as above a thread gets of matrix m, in to[m], the columns 2t
// and 2t + 1 of row g; of the transposed matrices the rows 2t and 2t + 1 of column g. Low half first.
template <bool kTransposed>
__device__ inline void LoadMatrices(const __nv_bfloat16* row, uint32_t to[4]) {
#if defined(EDGEWISE_CUDA_EMULATED)
  emulator::LoadMatrices(kTransposed, row, to);
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// Two floats as a pair of bf16, `low` in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat16 l = __float2bfloat16_rn(low), h = __float2bfloat16_rn(high);
  return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&l)) |
         static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&h)) << 16;
}

// A float32 is the sum of kParts bf16: its leading 8 bits, the next 8 and the last 8. All have its sign, so that no
// part of an infinite product is the opposite infinity. Infinity and NaN: the sum of the parts is NaN.
inline constexpr int kParts = 3;
// The parts of two numbers; of each the low half is of the first.
struct PairParts {
  uint32_t part[kParts];
};
__device__ inline PairParts PartPair(float low, float high) {
  constexpr uint32_t kLeading = 0xFFFF0000u;
  PairParts of;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const uint32_t l = __float_as_uint(low), h = __float_as_uint(high);
    of.part[i] = __byte_perm(l, h, 0x7632);
    low -= __uint_as_float(l & kLeading);
    high -= __uint_as_float(h & kLeading);
  }
  return of;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_MMA_CUH_
