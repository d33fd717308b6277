// Matrix products for one instruction set; compiled with its flags (kernels/cpu/sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE generic_gemm

#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/vector_portable.h"

// After what it uses.
#include "kernels/cpu/simd/gemm.inl"

namespace edgewise {

const GemmKernels kGenericGemm = {generic_gemm::kLanes, generic_gemm::RunGemm, generic_gemm::Squares};

}  // namespace edgewise
