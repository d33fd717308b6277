// Matrix products for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx512_gemm

#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/vector_avx512.h"

// After what it uses.
#include "kernels/cpu/simd/gemm.inl"

namespace edgewise {

const GemmKernels kAvx512Gemm = {avx512_gemm::kLanes, avx512_gemm::RunGemm, avx512_gemm::Squares};

}  // namespace edgewise
