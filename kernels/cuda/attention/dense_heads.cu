// Dense heads whose edges are rows of their own, on tensor cores: a tile's scores and its mask bits are in the same
// threads (draw_fragment.cuh).
#include <type_traits>

#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/draw_fragment.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/tiles_bf16.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// The items of dense heads, for AttendTilesBf16: 16 queries a warp, over all keys of their sequence. Fragment says
// which of them are edges: FragmentDraw or FragmentGiven.
template <typename Fragment>
class DenseItems {
 public:
  static constexpr bool kMasked = true;
  static constexpr bool kDrawn = std::is_same_v<Fragment, FragmentDraw>;

  template <int kWarps>
  __device__ static TileItem Get(const DeviceCall& call) {
    const FragmentItem& item = (kDrawn ? call.dense_items : call.given_items)[blockIdx.x];
    return {item.problem, item.head, item.first_query, item.queries, call.problems[item.problem].tokens};
  }
  __device__ static bool Skip(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item) {
    return kDrawn && !IsDenseHead(call, problem, item.head);
  }

  __device__ DenseItems(const DeviceCall& call, const TileItem& item, int warp)
      : rows_{item.problem, item.head, item.first_query + warp * kWarpQueries, 1,
              max(0, min(item.queries - warp * kWarpQueries, kWarpQueries))},
        fragment_(call, rows_) {}

  __device__ uint32_t Next(int tile) {
    const uint32_t edges = fragment_.Next(tile * kTileKeys);
    edges_[0] += __popc(edges & 0xFFFFu);
    edges_[1] += __popc(edges >> 16);
    return edges;
  }

  // Sets the limits of the warp's rows to their edges, and adds those to what the head reports.
  __device__ void Finish(const DeviceCall& call, const DeviceProblem& problem, const TileItem& item, TileLists& lists) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    int sum = 0, isolated = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int edges = edges_[half];  // of the row: all four threads that have it know
      edges += __shfl_xor_sync(kWholeWarp, edges, 1);
      edges += __shfl_xor_sync(kWholeWarp, edges, 2);
      const int row = lane / 4 + 8 * half;
      if (row < rows_.rows && lane % 4 == 0) {
        lists.limits[rows_.first_query - item.first_query + row] = edges;
        sum += edges;
        isolated += edges == 0 ? 1 : 0;
      }
    }
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, step);
      isolated += __shfl_xor_sync(kWholeWarp, isolated, step);
    }
    __syncwarp(kWholeWarp);
    if (lane != 0 || !kDrawn) return;
    DeviceHeadCounts& counts = call.counts[problem.count + item.head];
    if (sum > 0) atomicAdd(&counts.edges, static_cast<unsigned long long>(sum));
    if (isolated > 0) atomicAdd(&counts.isolated, static_cast<unsigned long long>(isolated));
  }

 private:
  const FragmentRows rows_;
  Fragment fragment_;
  int edges_[2] = {};  // of the thread's two queries and its keys
};

namespace {

constexpr int kSampleWarps = 8;

// One block a sampled item; its warps share the tiles.
__global__ void __launch_bounds__(kSampleWarps* kWarpSize) AddSampledEdges(const __grid_constant__ DeviceCall call) {
  const FragmentItem& item = call.sampled_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (Cancelled(problem)) return;
  const FragmentDraw draw(call, {item.problem, item.head, item.first_query, kSampledStep, item.queries});
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int edges = 0;
  for (int32_t key = warp * kTileKeys; key < problem.tokens; key += kSampleWarps * kTileKeys) {
    edges += __popc(draw.Next(key));
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) edges += __shfl_xor_sync(kWholeWarp, edges, step);
  unsigned long long& sum = call.sampled_edges[problem.sampled + item.head];
  if (lane == 0 && edges > 0) atomicAdd(&sum, static_cast<unsigned long long>(edges));
}

template <typename Fragment, int kValueDim>
cudaError_t LaunchItems(cudaStream_t stream, const DeviceCall& call) {
  using Items = DenseItems<Fragment>;
  return Launch(stream, Items::kDrawn ? call.num_dense_items : call.num_given_items, kTileThreads<kTileWarps>,
                tiles_bf16::SharedBytes<kTileWarps>(call.head_dim, call.value_dim),
                tiles_bf16::AttendTilesBf16<kTileWarps, 0, kValueDim, Items>, call);
}

// Queries are read again for every tile: their registers are those that a draw needs.
template <typename Fragment>
cudaError_t AttendItems(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 32) return LaunchItems<Fragment, 32>(stream, call);
  if (call.value_dim <= 64) return LaunchItems<Fragment, 64>(stream, call);
  return LaunchItems<Fragment, 128>(stream, call);
}

}  // namespace

cudaError_t CountSampledEdges(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_sampled_items, kSampleWarps * kWarpSize, 0, AddSampledEdges, call);
}

cudaError_t AttendDense(cudaStream_t stream, const DeviceCall& call) {
  if (call.num_dense_items == 0 && call.num_given_items == 0) return cudaSuccess;
  if (call.head_dim > kMaxTileDim || call.value_dim > kMaxDenseDim) return cudaErrorInvalidValue;
  const cudaError_t error = AttendItems<FragmentDraw>(stream, call);
  return error != cudaSuccess ? error : AttendItems<FragmentGiven>(stream, call);
}

}  // namespace edgewise::cuda
