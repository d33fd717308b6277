// The row kernel. A block takes one item, chunk of keys by chunk:
//   1. DrawBits draws or reads the chunk's edges, as bits in shared memory.
//   2. CountChunk counts the edges of each row.
//   3. RowGather attends over them: a warp takes a row at a time and adds the chunk to the row's sums.
// At the end StoreRows writes the normalised sums and ReportRows adds to the counts of the head.
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/attention/rows_gather.cuh"

namespace edgewise::cuda {
namespace {

// Counts each row's edges in the chunk; returns the edges of the item. Ends with a block barrier.
__device__ int CountChunk(const RowItem& item, RowsShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (threadIdx.x == 0) shared.next_row = 0;
  for (int row = warp; row < item.queries; row += kDrawWarps) {
    const uint64_t* bits = shared.bits + row * kChunkWords + 2 * lane;
    int count = __popcll(bits[0]) + __popcll(bits[1]);
    for (int step = kWarpSize / 2; step > 0; step /= 2) count += __shfl_xor_sync(kWholeWarp, count, step);
    if (lane == 0) {
      shared.chunk_edges[row] = count;
      shared.edges[row] += count;
    }
  }
  __syncthreads();
  int total = 0;
  for (int row = 0; row < item.queries; ++row) total += shared.chunk_edges[row];
  return total;
}

// Writes the normalised rows.
__device__ void StoreRows(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                          const RowsShared& shared, const float* sums) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int row = warp; row < item.queries; row += kDrawWarps) {
    OnlineSoftmax state;
    state.largest = shared.largest[row];
    state.sum = shared.sum[row];
    const float normalizer = state.Normalizer(shared.edges[row] > 0);
    float* out = call.out + (problem.out_row + item.first_query + row - problem.first_query) * call.out_stride +
                 static_cast<int64_t>(item.head) * call.value_dim;
    for (int c = lane; c < call.value_dim; c += kWarpSize) out[c] = sums[row * call.value_dim + c] * normalizer;
  }
}

// Adds the item's edges and its rows without any to what its head reports.
__device__ void ReportRows(const DeviceCall& call, const DeviceProblem& problem, const RowItem& item,
                           const RowsShared& shared) {
  if (problem.kind != PatternKind::kDrawn || threadIdx.x >= kWarpSize) return;
  const int lane = static_cast<int>(threadIdx.x);
  int count = lane < item.queries ? shared.edges[lane] : 1;
  const int isolated = __popc(__ballot_sync(kWholeWarp, count == 0));
  if (lane >= item.queries) count = 0;
  for (int step = kWarpSize / 2; step > 0; step /= 2) count += __shfl_xor_sync(kWholeWarp, count, step);
  if (lane != 0) return;
  DeviceHeadCounts& counts = call.counts[problem.count + item.head];
  atomicAdd(&counts.edges, static_cast<unsigned long long>(count));
  if (isolated > 0) atomicAdd(&counts.isolated, static_cast<unsigned long long>(isolated));
}
static_assert(kRowsPerItem <= kWarpSize);

// Blocks on a multiprocessor at once. A block for wide heads takes most of the shared memory of an A100.
constexpr int BlocksAtOnce(int max_dim) { return max_dim > 128 ? 1 : 2; }

// Heads of at most kMaxDim columns, keys and values alike.
template <typename Element, int kMaxDim>
__global__ void __launch_bounds__(kDrawThreads, BlocksAtOnce(kMaxDim))
    AttendRowItems(const __grid_constant__ DeviceCall call) {
  RowsShared& shared = *reinterpret_cast<RowsShared*>(DynamicShared());
  float* sums = reinterpret_cast<float*>(&shared + 1);
  const RowItem item = call.row_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (IsDenseHead(call, problem, item.head)) return;
  for (int row = static_cast<int>(threadIdx.x); row < kRowsPerItem; row += kDrawThreads) {
    shared.largest[row] = -INFINITY;
    shared.sum[row] = 0.0f;
    shared.edges[row] = shared.chunk_edges[row] = 0;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kRowsPerItem * call.value_dim; i += kDrawThreads) sums[i] = 0.0f;
#pragma unroll 1
  for (int32_t chunk = 0; static_cast<int64_t>(chunk) * kChunkKeys < problem.tokens; ++chunk) {
    if (Cancelled(problem)) return;
    const double tau = TauOf(call, problem);
    DrawBits(call, problem, item, CutOf(call, problem), tau, chunk, shared.draw, shared.bits,
             HasMultiplicity(problem) ? shared.parallel : nullptr);
    if (CountChunk(item, shared) == 0) continue;
    const RowOperands<Element> operands(call, problem, item);
    RowGather<Element, kMaxDim>(operands, chunk, tau, shared, sums).Run();
    __syncthreads();
  }
  StoreRows(call, problem, item, shared, sums);
  ReportRows(call, problem, item, shared);
}

template <typename Element, int kMaxDim>
cudaError_t Start(cudaStream_t stream, const DeviceCall& call) {
  const size_t shared = sizeof(RowsShared) + sizeof(float) * kRowsPerItem * call.value_dim;
  return Launch(stream, call.num_row_items, kDrawThreads, shared, kLoaded<AttendRowItems<Element, kMaxDim>>, call);
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
