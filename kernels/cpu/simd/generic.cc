// The kernels for any CPU.
#define EDGEWISE_SIMD_NAMESPACE generic
#include "kernels/cpu/simd/table.inl"

namespace edgewise {

constinit const CpuKernels kGenericKernels = generic::kTable;

}  // namespace edgewise
