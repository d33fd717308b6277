// Products of few rows for one instruction set; compiled with its flags (attention_sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE avx512_linear

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/simd_avx512.h"

// After what it uses.
#include "kernels/cpu/linear_few.inl"

namespace edgewise {

FewRowsKernel Avx512FewRows() { return avx512_linear::RunFewRows; }

}  // namespace edgewise
