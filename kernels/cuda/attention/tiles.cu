#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/attention/cancel.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/tiles_bf16.cuh"
#include "kernels/cuda/attention/tiles_dense.cuh"
#include "kernels/cuda/attention/tiles_fp32.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

template <typename Items, int kWarps, int kDim>
cudaError_t LaunchFp32(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, Items::template Count<kWarps>(call), kTileThreads<kWarps>,
                tiles_fp32::SharedBytes<kWarps, kDim>(call.head_dim),
                kLoaded<tiles_fp32::AttendTilesFp32<Items, kWarps, kDim>>, call);
}

template <typename Items, int kWarps>
cudaError_t AttendFp32(cudaStream_t stream, const DeviceCall& call) {
  const int32_t dim = std::max(call.head_dim, call.value_dim);
  if (dim <= 16) return LaunchFp32<Items, kWarps, 16>(stream, call);
  if (dim <= 32) return LaunchFp32<Items, kWarps, 32>(stream, call);
  if (dim <= 64) return LaunchFp32<Items, kWarps, 64>(stream, call);
  if (dim <= 128) return LaunchFp32<Items, kWarps, 128>(stream, call);
  return LaunchFp32<Items, kWarps, 256>(stream, call);
}

template <typename Items, int kWarps, int kSteps, int kValueDim>
cudaError_t LaunchBf16(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, Items::template Count<kWarps>(call), kTileThreads<kWarps>,
                tiles_bf16::SharedBytes<kWarps, kSteps, kValueDim>(call.head_dim, call.value_dim),
                kLoaded<tiles_bf16::AttendTilesBf16<Items, kWarps, kSteps, kValueDim>>, call);
}

template <typename Items, int kWarps, int kValueDim>
cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  constexpr int kSteps = kValueDim / tiles_bf16::kStep;
  return tiles_bf16::Steps(call.head_dim) == kSteps ? LaunchBf16<Items, kWarps, kSteps, kValueDim>(stream, call)
                                                    : LaunchBf16<Items, kWarps, 0, kValueDim>(stream, call);
}

template <typename Items, int kWarps>
cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return AttendBf16<Items, kWarps, 16>(stream, call);
  if (call.value_dim <= 32) return AttendBf16<Items, kWarps, 32>(stream, call);
  if (call.value_dim <= 64) return AttendBf16<Items, kWarps, 64>(stream, call);
  if (call.value_dim <= 128) return AttendBf16<Items, kWarps, 128>(stream, call);
  return AttendBf16<Items, kWarps, 256>(stream, call);
}

// One warp for each narrow item: adds up the parts of each of its rows in the order of keys. An item of one part
// would keep its bytes, so that a row's result does not depend on how many parts its item has.
__global__ void __launch_bounds__(kWarpSize) MergeParts(const __grid_constant__ DeviceCall call) {
  const TileItem& item = call.narrow_items[blockIdx.x];
  const DeviceProblem& problem = call.problems[item.problem];
  if (item.first_part < 0 || Cancelled(problem)) return;
  const int lane = static_cast<int>(threadIdx.x), parts = PartsOf(item);
  const int64_t next = RowsOf(item) * PartStride(call.value_dim);  // floats from part to part
  for (int row = 0; row < RowsOf(item); ++row) {
    const float* const first = PartRow(call, item, {}, row);
    OnlineSoftmax state;
    for (int part = lane; part < parts; part += kWarpSize) {
      state.largest = fmaxf(state.largest, first[part * next + call.value_dim]);
    }
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      state.largest = fmaxf(state.largest, __shfl_xor_sync(kWholeWarp, state.largest, step));
    }
    for (int part = 0; part < parts; ++part) {
      const float* const of = first + part * next + call.value_dim;
      state.sum = fmaf(state.Weight(of[0]), of[1], state.sum);
    }
    const float scale = state.Normalizer(LimitOf(item, row) > 0);
    const OutRow out = OutRowOf(call, problem, item, row);
    for (int column = lane; column < call.value_dim; column += kWarpSize) {
      float sum = 0.0f;
#pragma unroll 4
      for (int part = 0; part < parts; ++part) {
        const float* const of = first + part * next;
        sum = fmaf(state.Weight(of[call.value_dim]), of[column], sum);
      }
      const float value[1] = {fmaf(sum, scale, 0.0f)};  // as WriteRows
      call.bf16 ? out.Put<true>(column, value) : out.Put<false>(column, value);
    }
  }
}

template <typename Items, int kWarps>
cudaError_t AttendItems(cudaStream_t stream, const DeviceCall& call) {
  if (Items::template Count<kWarps>(call) == 0) return cudaSuccess;
  return call.bf16 ? AttendBf16<Items, kWarps>(stream, call) : AttendFp32<Items, kWarps>(stream, call);
}

}  // namespace

cudaError_t AttendTiles(cudaStream_t stream, const DeviceCall& call) {
  if (call.head_dim > kMaxTileDim || call.value_dim > kMaxTileDim) return cudaErrorInvalidValue;
  cudaError_t error = AttendWideTiles(stream, call);
  if (error == cudaSuccess) error = AttendItems<DenseItems, kTileWarps>(stream, call);
  if (error == cudaSuccess) error = AttendItems<ListedItems, kTileWarps>(stream, call);
  if (error == cudaSuccess) error = AttendItems<ListedItems, 1>(stream, call);
  if (error != cudaSuccess || call.most_parts == 1) return error;
  return Launch(stream, call.num_narrow_items, kWarpSize, 0, kLoaded<MergeParts>, call);
}

}  // namespace edgewise::cuda
