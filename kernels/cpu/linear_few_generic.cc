// Products of few rows for one instruction set; compiled with its flags (attention_sources.cmake).
#define EDGEWISE_SIMD_NAMESPACE generic_linear

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/simd_portable.h"

// After what it uses.
#include "kernels/cpu/linear_few.inl"

namespace edgewise {

FewRowsKernel GenericFewRows() { return generic_linear::RunFewRows; }

}  // namespace edgewise
