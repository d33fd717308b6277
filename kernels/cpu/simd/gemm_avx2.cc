// Matrix products for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx2_gemm

#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/vector_portable.h"

// After what it uses.
#include "kernels/cpu/simd/gemm.inl"

namespace edgewise {

const GemmKernels kAvx2Gemm = {avx2_gemm::kLanes, avx2_gemm::RunGemm, avx2_gemm::Squares};

}  // namespace edgewise
