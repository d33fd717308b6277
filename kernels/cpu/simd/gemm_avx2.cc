// Matrix products for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx2_gemm

#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/vector_portable.h"

// After what it uses.
#include "kernels/cpu/simd/gemm.inl"

namespace edgewise {

GemmKernel Avx2Gemm() { return avx2_gemm::RunGemm; }

}  // namespace edgewise
