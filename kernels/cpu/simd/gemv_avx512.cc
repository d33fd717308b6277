// Products of few rows for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx512_linear

#include "kernels/cpu/simd/linear_kernels.h"
#include "kernels/cpu/simd/vector_avx512.h"

// After what it uses.
#include "kernels/cpu/simd/gemv.inl"

namespace edgewise {

GemvKernel Avx512Gemv() { return avx512_linear::RunGemv; }

}  // namespace edgewise
