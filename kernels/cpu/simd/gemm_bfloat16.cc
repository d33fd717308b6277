// Matrix products with weights in bfloat16.
#include "kernels/cpu/simd/gemm.inl"
#include "kernels/cpu/simd/parts.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

void AddBfloat16Gemm(CpuKernels& table) {
  table.group_step = 1;
  table.gemm_bfloat16 = MultiplyRows<uint16_t>;
  table.bfloat16_group = 1;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
