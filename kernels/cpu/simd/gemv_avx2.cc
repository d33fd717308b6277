// Products of few rows for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx2_linear

#include "kernels/cpu/simd/linear_kernels.h"
#include "kernels/cpu/simd/vector_portable.h"

// After what it uses.
#include "kernels/cpu/simd/gemv.inl"

namespace edgewise {

GemvKernel Avx2Gemv() { return avx2_linear::RunGemv; }

}  // namespace edgewise
