// Which drawn heads are dense: their sampled queries are drawn once, before anything is attended over.
#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/draw_fragment.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

constexpr int kSampleWarps = 8;

// One block a sampled item; its warps share the tiles.
__global__ void __launch_bounds__(kSampleWarps* kWarpSize) AddSampledEdges(const __grid_constant__ DeviceCall call) {
  const RowItem& item = call.sampled_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (Cancelled(problem) || IsEventHead(call, problem, item.head)) return;
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

}  // namespace

cudaError_t CountSampledEdges(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_sampled_items, kSampleWarps * kWarpSize, 0, kLoaded<AddSampledEdges>, call);
}

}  // namespace edgewise::cuda
