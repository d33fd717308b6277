#include <cuda_runtime.h>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/tiles_bf16.cuh"
#include "kernels/cuda/attention/tiles_dense.cuh"
#include "kernels/cuda/attention/tiles_fp32.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

template <typename Items, int kWarps, int kColumns>
cudaError_t LaunchFp32(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, Items::template Count<kWarps>(call), kTileThreads<kWarps>,
                tiles_fp32::SharedBytes<kWarps>(call.head_dim, 16 * kColumns),
                kLoaded<tiles_fp32::AttendTilesFp32<Items, kWarps, kColumns>>, call);
}

template <typename Items, int kWarps>
cudaError_t AttendFp32(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return LaunchFp32<Items, kWarps, 1>(stream, call);
  if (call.value_dim <= 32) return LaunchFp32<Items, kWarps, 2>(stream, call);
  if (call.value_dim <= 64) return LaunchFp32<Items, kWarps, 4>(stream, call);
  if (call.value_dim <= 128) return LaunchFp32<Items, kWarps, 8>(stream, call);
  return LaunchFp32<Items, kWarps, 16>(stream, call);
}

template <typename Items, int kWarps, int kSteps, int kValueDim>
cudaError_t LaunchBf16(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, Items::template Count<kWarps>(call), kTileThreads<kWarps>,
                tiles_bf16::SharedBytes<kWarps>(call.head_dim, call.value_dim),
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

template <typename Items, int kWarps>
cudaError_t AttendItems(cudaStream_t stream, const DeviceCall& call) {
  if (Items::template Count<kWarps>(call) == 0) return cudaSuccess;
  return call.k16 != nullptr ? AttendBf16<Items, kWarps>(stream, call) : AttendFp32<Items, kWarps>(stream, call);
}

}  // namespace

cudaError_t AttendTiles(cudaStream_t stream, const DeviceCall& call) {
  if (call.head_dim > kMaxTileDim || call.value_dim > kMaxTileDim) return cudaErrorInvalidValue;
  cudaError_t error = AttendItems<DenseItems, kTileWarps>(stream, call);
  if (error == cudaSuccess) error = AttendItems<ListedItems, kTileWarps>(stream, call);
  return error != cudaSuccess ? error : AttendItems<ListedItems, 1>(stream, call);
}

}  // namespace edgewise::cuda
