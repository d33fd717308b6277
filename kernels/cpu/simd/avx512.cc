// The kernels for AVX-512 (F, BW, DQ, VL, VBMI, VBMI2 and VNNI).
#define EDGEWISE_SIMD_NAMESPACE avx512
#include "kernels/cpu/simd/table.inl"

namespace edgewise {

constinit const CpuKernels kAvx512Kernels = avx512::kTable;

}  // namespace edgewise
