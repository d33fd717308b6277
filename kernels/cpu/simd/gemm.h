// Matrix products whose rows do not depend on each other: a row's bytes are the same for any number of rows, any row
// beside it and any share of the columns. Plain data and function pointers, one per instruction set.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_GEMM_H_
#define EDGEWISE_KERNELS_CPU_SIMD_GEMM_H_

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cpu/simd/isa.h"

namespace edgewise {

// The sum over `in` is cut into segments of so many elements. Each segment is one chain of fused multiply-adds in
// ascending order; the segments are added in ascending order. (The generic kernel multiplies and adds separately.)
inline constexpr int64_t kGemmSegment = 256;
// A panel of weights is at most so many vectors of columns wide.
inline constexpr int kGemmVectors = 3;

// Panels begin at multiples of the vector width. All but the last few are three vectors wide; the last are two, or one
// where the matrix has no more.
// Vectors of the panel that begins where `left` vectors (>= 1) are left.
inline int GemmPanelVectors(int64_t left) {
  if (left == 1) return 1;
  return left == 2 || left == 4 ? 2 : kGemmVectors;
}

// y = activation(x W^T + bias), or y += x W^T + bias, for some columns.
struct Gemm {
  int64_t rows = 0, in = 0;
  int64_t columns = 0;       // of y and W; every panel but the matrix's last is whole
  const float* x = nullptr;  // [rows, in], rows x_stride apart
  int64_t x_stride = 0;
  // Panel after panel, each [in, panel's columns] and zero beyond the matrix's last column; 64-byte aligned.
  const float* panels = nullptr;
  const float* bias = nullptr;  // [columns] or null
  float* y = nullptr;           // [rows, columns], rows y_stride apart; must not overlap x
  int64_t y_stride = 0;
  bool accumulate = false;  // only without an activation
  Activation activation = Activation::kNone;
};

using GemmKernel = void (*)(const Gemm&);

// squares[r] = <x_r, x_r> in the order of MembershipDot (kernels/draw.h). x [rows, columns] contiguous, columns a
// multiple of 16.
using SquaresKernel = void (*)(const float* x, int64_t rows, int64_t columns, float* squares);

struct GemmKernels {
  int lanes;  // columns of a vector
  GemmKernel run;
  SquaresKernel squares;
};

extern const GemmKernels kGenericGemm;
#if defined(__x86_64__)
extern const GemmKernels kAvx2Gemm, kAvx512Gemm;
#endif

inline const GemmKernels& GemmKernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512Gemm;
  if (isa == Isa::kAvx2) return kAvx2Gemm;
#endif
  return kGenericGemm;
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_CPU_SIMD_GEMM_H_
