// The table of one instruction set.
#include "kernels/cpu/simd/parts.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

const CpuKernels& Table() {
  static const CpuKernels table = [] {
    CpuKernels parts = {};
    AddAttention(parts);
    AddDraws(parts);
    AddGemm(parts);
    AddBfloat16Gemm(parts);
    AddInt8Gemm(parts);
    return parts;
  }();
  return table;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
