// Matrix products of 8-bit integers, and operations on whole rows.
#include "kernels/cpu/simd/gemm_int8.inl"

#include "kernels/cpu/simd/parts.h"
#include "kernels/cpu/simd/whole_rows.inl"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

void AddInt8Gemm(CpuKernels& table) {
  table.int8_group = kInt8Group;
  table.gemm_int8 = MultiplyInt8;
  table.quantize_row = QuantizeRow;
  table.layer_norm = LayerNorm;
  table.rms_norm = RmsNorm;
  table.rotate = Rotate;
  table.gate = Gate;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
