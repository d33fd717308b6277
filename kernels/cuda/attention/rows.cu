#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rows_kernel.cuh"

namespace edgewise::cuda {
namespace {

template <typename Element, int kMaxDim, bool kAligned>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  const size_t shared = sizeof(RowsShared) + sizeof(float) * kRowsPerItem * call.value_dim +
                        DenseRows<Element, kMaxDim, kAligned>::SharedBytes(call.head_dim);
  return Launch(stream, call.num_row_items, kDrawThreads, shared, AttendRowItems<Element, kMaxDim, kAligned>, call);
}

bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

cudaError_t AttendRows(cudaStream_t stream, const DeviceCall& call) {
  const int dim = call.head_dim > call.value_dim ? call.head_dim : call.value_dim;
  if (dim > kMaxHeadDim) return cudaErrorInvalidValue;
  if (call.k16 != nullptr) {
    const bool aligned =
        call.head_dim % 8 == 0 && call.value_dim % 8 == 0 && IsAligned(call.k16) && IsAligned(call.v16);
    if (!aligned) return Start<__nv_bfloat16, 256, false>(stream, call);
    if (dim <= 32) return Start<__nv_bfloat16, 32, true>(stream, call);
    if (dim <= 64) return Start<__nv_bfloat16, 64, true>(stream, call);
    if (dim <= 128) return Start<__nv_bfloat16, 128, true>(stream, call);
    return Start<__nv_bfloat16, 256, true>(stream, call);
  }
  const bool aligned = call.head_dim % 4 == 0 && call.value_dim % 4 == 0 && call.k_stride % 4 == 0 &&
                       call.v_stride % 4 == 0 && IsAligned(call.k) && IsAligned(call.v);
  if (!aligned) return Start<float, 256, false>(stream, call);
  if (dim <= 32) return Start<float, 32, true>(stream, call);
  if (dim <= 64) return Start<float, 64, true>(stream, call);
  if (dim <= 128) return Start<float, 128, true>(stream, call);
  return Start<float, 256, true>(stream, call);
}

}  // namespace edgewise::cuda
