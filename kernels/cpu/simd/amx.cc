// The kernels for AMX (TILE, INT8, BF16) on top of AVX-512, with AVX512-BF16.
#define EDGEWISE_SIMD_NAMESPACE amx
#include "kernels/cpu/simd/amx.inl"

namespace edgewise {

CpuKernels WithTiles(CpuKernels kernels) {
  kernels.group_step = amx::kStepGroups;
  kernels.bfloat16_group = 2;
  kernels.round_row = amx::RoundRow;
  kernels.gemm_bfloat16 = amx::MultiplyPairs;
  kernels.gemm_int8 = amx::MultiplyInt8;
  return kernels;
}

}  // namespace edgewise
