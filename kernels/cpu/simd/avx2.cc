// The kernels for AVX2 with FMA.
#define EDGEWISE_SIMD_NAMESPACE avx2
#include "kernels/cpu/simd/table.inl"

namespace edgewise {

constinit const CpuKernels kAvx2Kernels = avx2::kTable;

}  // namespace edgewise
