// The row kernel: a block has an item at a time. In precision bf16 a warp has RowsMma::kRows rows of it (rows_mma.cuh),
// in float32, and where heads are wide, one row at a time (rows_gather.cuh).
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/attention/rows_gather.cuh"
#include "kernels/cuda/attention/rows_mma.cuh"

namespace edgewise::cuda {
namespace {

constexpr int BlocksAtOnce(int max_dim) { return max_dim > 128 ? 1 : 2; }  // on a multiprocessor

// No row of the item is for this kernel in this round.
__device__ bool IsElsewhere(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item) {
  if (problem.kind != PatternKind::kDrawn) return !IsFirstRound(call);
  return NothingDrawn(call) || IsDenseHead(call, problem, item.head);
}

// Heads of at most kMaxDim columns, keys and values alike.
template <typename Element, int kMaxDim>
__global__ void __launch_bounds__(kRowThreads, BlocksAtOnce(kMaxDim))
    AttendRowItems(const __grid_constant__ DeviceCall call) {
  __shared__ uint32_t lists[kRowWarps][RowGather<Element, kMaxDim>::kListed];
  __shared__ int next_row;
#pragma unroll 1
  for (uint32_t index = blockIdx.x; index < call.num_row_items; index += gridDim.x) {
    const RowItem& item = call.row_items[index];
    const DeviceProblem& problem = call.problems[item.problem];
    if (IsElsewhere(call, problem, item) || Cancelled(problem)) continue;
    __syncthreads();  // the item before has no rows left
    if (threadIdx.x == 0) next_row = 0;
    __syncthreads();
    const RowOperands<Element> operands(call, problem, item);
    RowGather<Element, kMaxDim> gather(operands, TauOf(call, problem), lists[ThisThread() / kWarpSize]);
    for (;;) {  // rows until none is left
      int row = threadIdx.x % kWarpSize == 0 ? atomicAdd(&next_row, 1) : 0;
      row = __shfl_sync(kWholeWarp, row, 0);
      if (row >= item.queries || !gather.Attend(row)) break;
    }
  }
}

constexpr int kMmaRows = RowsMma<1, 1, false>::kRows;
constexpr int kMmaWarps = kRowsPerItem / kMmaRows, kMmaThreads = kMmaWarps * kWarpSize;

template <int kKeyParts, int kValueParts, bool kSpecial>
__global__ void __launch_bounds__(kMmaThreads, !kSpecial && kKeyParts <= 2 && kValueParts == 1 ? 5 : 1)
    AttendRowGroups(const __grid_constant__ DeviceCall call) {
  using Mma = RowsMma<kKeyParts, kValueParts, kSpecial>;
  __shared__ uint32_t lists[kMmaWarps][Mma::kListed];
#pragma unroll 1
  for (uint32_t index = blockIdx.x; index < call.num_row_items; index += gridDim.x) {
    const RowItem& item = call.row_items[index];
    const DeviceProblem& problem = call.problems[item.problem];
    if (IsElsewhere(call, problem, item) || Cancelled(problem)) continue;
    const int warp = ThisThread() / kWarpSize;
    const int last = min(item.queries, (warp + 1) * kMmaRows);
    const RowOperands<__nv_bfloat16> operands(call, problem, item);
    int rows = kMmaRows;  // at once
#pragma unroll 1
    for (int first = warp * kMmaRows; first < last;) {
      if (!IsOnlyRound(call) && !RowEdges(call, problem, item, item.first_query + first).here()) {
        ++first;
        continue;
      }
      const int count = min(rows, last - first);
      const typename Mma::End end = Mma(operands, TauOf(call, problem), lists[warp]).Attend(first, count);
      if (end == Mma::End::kCancelled) break;
      if (end == Mma::End::kStored || rows == 1) {
        first += count;
      } else {
        rows = 1;
      }
    }
  }
}

template <int kKeyParts, int kValueParts>
cudaError_t StartGroups(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kMmaThreads, 0,
                call.special ? kLoaded<AttendRowGroups<kKeyParts, kValueParts, true>>
                             : kLoaded<AttendRowGroups<kKeyParts, kValueParts, false>>,
                call);
}

template <int kKeyParts>
cudaError_t StartGroups(cudaStream_t stream, const DeviceCall& call) {
  return call.value_dim <= 64 ? StartGroups<kKeyParts, 1>(stream, call) : StartGroups<kKeyParts, 2>(stream, call);
}

cudaError_t StartGroups(cudaStream_t stream, const DeviceCall& call) {
  if (call.head_dim <= 32) return StartGroups<1>(stream, call);
  return call.head_dim <= 64 ? StartGroups<2>(stream, call) : StartGroups<4>(stream, call);
}

template <typename Element, int kMaxDim>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, BlocksFor(call, call.num_row_items), kRowThreads, 0, kLoaded<AttendRowItems<Element, kMaxDim>>,
                call);
}

cudaError_t StartFp32(cudaStream_t stream, const DeviceCall& call) {
  const int dim = call.head_dim > call.value_dim ? call.head_dim : call.value_dim;
  if (dim <= 32) return Start<float, 32>(stream, call);
  if (dim <= 64) return Start<float, 64>(stream, call);
  if (dim <= 128) return Start<float, 128>(stream, call);
  return Start<float, kMaxHeadDim>(stream, call);
}

}  // namespace

cudaError_t AttendRows(cudaStream_t stream, const DeviceCall& call) {
  if (call.head_dim > kMaxHeadDim || call.value_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  if (call.k16 == nullptr) return StartFp32(stream, call);
  if (call.head_dim > 128 || call.value_dim > 128) return Start<__nv_bfloat16, kMaxHeadDim>(stream, call);
  return StartGroups(stream, call);
}

}  // namespace edgewise::cuda
