// The row kernel: a block has an item at a time, a warp of it one row at a time, in precision bf16 by rows_mma.cuh, in
// float32 by rows_gather.cuh.
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/attention/rows_gather.cuh"
#include "kernels/cuda/attention/rows_mma.cuh"

namespace edgewise::cuda {
namespace {

constexpr int kWarps = 4;

// No row of the item is for this kernel in this round.
__device__ bool IsElsewhere(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item) {
  if (problem.kind != PatternKind::kDrawn) return !IsFirstRound(call);
  return NothingDrawn(call) || IsDenseHead(call, problem, item.head);
}

template <typename Rows, int kBlocksAtOnce>
__global__ void __launch_bounds__(kWarps* kWarpSize, kBlocksAtOnce)
    AttendRowItems(const __grid_constant__ DeviceCall call) {
  __shared__ typename Rows::Shared shared[kWarps];
#pragma unroll 1
  for (uint32_t index = blockIdx.x; index < call.num_row_items; index += gridDim.x) {
    const RowItem& item = call.row_items[index];
    const DeviceProblem& problem = call.problems[item.problem];
    if (IsElsewhere(call, problem, item) || Cancelled(problem)) continue;
    const RowOperands<typename Rows::Element> operands(call, problem, item);
    const int warp = static_cast<int>(threadIdx.x / kWarpSize);
    Rows rows(operands, shared[warp]);
#pragma unroll 1
    for (int row = warp; row < item.queries; row += kWarps) {
      if (!rows.Attend(row)) break;
    }
  }
}

// kBlocksAtOnce: on a multiprocessor, of rows without biases and multiplicities.
template <template <bool> typename Rows, int kBlocksAtOnce>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  return Launch(
      stream, BlocksFor(call, call.num_row_items), kWarps * kWarpSize, 0,
      call.special ? kLoaded<AttendRowItems<Rows<true>, 1>> : kLoaded<AttendRowItems<Rows<false>, kBlocksAtOnce>>,
      call);
}

template <int kMaxDim>
struct Fp32 {
  template <bool kSpecial>
  using Rows = RowGather<kMaxDim, kSpecial>;
};
template <int kKeyParts, int kValueParts>
struct Bf16 {
  template <bool kSpecial>
  using Rows = RowsMma<kKeyParts, kValueParts, kSpecial>;
};

}  // namespace

cudaError_t AttendRows(cudaStream_t stream, const DeviceCall& call) {
  const int dim = call.head_dim > call.value_dim ? call.head_dim : call.value_dim;
  if (dim > kMaxHeadDim) return cudaErrorInvalidValue;
  if (call.bf16) {
    if (call.head_dim <= 32 && dim <= 64) return Start<Bf16<1, 1>::Rows, 6>(stream, call);
    if (dim <= 64) return Start<Bf16<2, 1>::Rows, 6>(stream, call);
    if (dim <= 128) return Start<Bf16<4, 2>::Rows, 3>(stream, call);
    return Start<Bf16<8, 4>::Rows, 2>(stream, call);
  }
  if (dim <= 32) return Start<Fp32<32>::Rows, 6>(stream, call);
  if (dim <= 64) return Start<Fp32<64>::Rows, 5>(stream, call);
  if (dim <= 128) return Start<Fp32<128>::Rows, 5>(stream, call);
  return Start<Fp32<kMaxHeadDim>::Rows, 4>(stream, call);
}

}  // namespace edgewise::cuda
