#include <cuda_runtime.h>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/tiles_bf16.cuh"
#include "kernels/cuda/attention/tiles_fp32.cuh"
#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {
namespace {

// One block an item, of the list for blocks of so many warps.
template <int kWarps>
cudaError_t LaunchItems(cudaStream_t stream, size_t shared_bytes, void (*kernel)(DeviceCall), const DeviceCall& call) {
  return Launch(stream, kWarps == 1 ? call.num_narrow_items : call.num_tile_items, kTileThreads<kWarps>, shared_bytes,
                kernel, call);
}

template <int kWarps, int kColumns>
cudaError_t LaunchFp32(cudaStream_t stream, const DeviceCall& call) {
  return LaunchItems<kWarps>(stream, tiles_fp32::SharedBytes<kWarps>(call.head_dim, 16 * kColumns),
                             tiles_fp32::AttendTilesFp32<kWarps, kColumns>, call);
}

template <int kWarps>
cudaError_t AttendFp32(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return LaunchFp32<kWarps, 1>(stream, call);
  if (call.value_dim <= 32) return LaunchFp32<kWarps, 2>(stream, call);
  if (call.value_dim <= 64) return LaunchFp32<kWarps, 4>(stream, call);
  if (call.value_dim <= 128) return LaunchFp32<kWarps, 8>(stream, call);
  return LaunchFp32<kWarps, 16>(stream, call);
}

template <int kWarps, int kSteps, int kValueDim>
cudaError_t LaunchBf16(cudaStream_t stream, const DeviceCall& call) {
  return LaunchItems<kWarps>(stream, tiles_bf16::SharedBytes<kWarps>(call.head_dim, call.value_dim),
                             tiles_bf16::AttendTilesBf16<kWarps, kSteps, kValueDim>, call);
}

// Queries are held in registers where keys are about as wide as values.
template <int kWarps, int kValueDim>
cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  constexpr int kSteps = kValueDim <= 128 ? kValueDim / tiles_bf16::kStep : 0;
  return tiles_bf16::Steps(call.head_dim) == kSteps ? LaunchBf16<kWarps, kSteps, kValueDim>(stream, call)
                                                    : LaunchBf16<kWarps, 0, kValueDim>(stream, call);
}

template <int kWarps>
cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return AttendBf16<kWarps, 16>(stream, call);
  if (call.value_dim <= 32) return AttendBf16<kWarps, 32>(stream, call);
  if (call.value_dim <= 64) return AttendBf16<kWarps, 64>(stream, call);
  if (call.value_dim <= 128) return AttendBf16<kWarps, 128>(stream, call);
  return AttendBf16<kWarps, 256>(stream, call);
}

template <int kWarps>
cudaError_t AttendItems(cudaStream_t stream, const DeviceCall& call) {
  return call.k16 != nullptr ? AttendBf16<kWarps>(stream, call) : AttendFp32<kWarps>(stream, call);
}

}  // namespace

cudaError_t AttendTiles(cudaStream_t stream, const DeviceCall& call) {
  if (call.num_tile_items == 0 && call.num_narrow_items == 0) return cudaSuccess;
  if (call.head_dim > kMaxTileDim || call.value_dim > kMaxTileDim) return cudaErrorInvalidValue;
  const cudaError_t error = AttendItems<kTileWarps>(stream, call);
  return error != cudaSuccess ? error : AttendItems<1>(stream, call);
}

}  // namespace edgewise::cuda
