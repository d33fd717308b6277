// Matrix products of float32.
#include "kernels/cpu/simd/gemm.inl"

#include "kernels/cpu/simd/parts.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

template void GemmRows<1>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);
template void GemmRows<2>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);
template void GemmRows<3>(const Gemm&, GemmPart<float>, const float*, float*, int64_t);

void AddGemm(CpuKernels& table) {
  table.lanes = kLanes;
  table.gemm = MultiplyRows<float>;
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE
