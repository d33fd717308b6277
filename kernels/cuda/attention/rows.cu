// The row kernel: a block has one item, and a warp attends over one row at a time (rows_gather.cuh).
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/attention/rows_gather.cuh"

namespace edgewise::cuda {
namespace {

constexpr int BlocksAtOnce(int max_dim) { return max_dim > 128 ? 1 : 2; }  // on a multiprocessor

// Heads of at most kMaxDim columns, keys and values alike.
template <typename Element, int kMaxDim>
__global__ void __launch_bounds__(kRowThreads, BlocksAtOnce(kMaxDim))
    AttendRowItems(const __grid_constant__ DeviceCall call) {
  __shared__ uint32_t lists[kRowWarps][RowGather<Element, kMaxDim>::kListed];
  __shared__ int next_row;
  const RowItem item = call.row_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (item.slot >= 0 && IsDenseHead(call, problem, item.head)) return;
  if (Cancelled(problem)) return;
  if (threadIdx.x == 0) next_row = 0;
  __syncthreads();
  const RowOperands<Element> operands(call, problem, item);
  RowGather<Element, kMaxDim> gather(operands, TauOf(call, problem), lists[ThisThread() / kWarpSize]);
  for (;;) {  // rows until none is left
    int row = threadIdx.x % kWarpSize == 0 ? atomicAdd(&next_row, 1) : 0;
    row = __shfl_sync(kWholeWarp, row, 0);
    if (row >= item.queries || !gather.Attend(row)) return;
  }
}

template <typename Element, int kMaxDim>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_row_items, kRowThreads, 0, kLoaded<AttendRowItems<Element, kMaxDim>>, call);
}

template <typename Element>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  const int dim = call.head_dim > call.value_dim ? call.head_dim : call.value_dim;
  if (dim <= 32) return Start<Element, 32>(stream, call);
  if (dim <= 64) return Start<Element, 64>(stream, call);
  if (dim <= 128) return Start<Element, 128>(stream, call);
  return Start<Element, 256>(stream, call);
}

}  // namespace

cudaError_t AttendRows(cudaStream_t stream, const DeviceCall& call) {
  if (call.head_dim > kMaxHeadDim || call.value_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  return call.k16 != nullptr ? Start<__nv_bfloat16>(stream, call) : Start<float>(stream, call);
}

}  // namespace edgewise::cuda
