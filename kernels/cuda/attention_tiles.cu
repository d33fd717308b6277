#include <cuda_runtime.h>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_tiles_bf16.cuh"
#include "kernels/cuda/attention_tiles_fp32.cuh"
#include "kernels/cuda/launch.h"

namespace edgewise::cuda {
namespace {

template <int kColumns>
cudaError_t LaunchFp32(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_tile_items, kTileThreads, tiles_fp32::SharedBytes(call.head_dim, 16 * kColumns),
                tiles_fp32::AttendTilesFp32<kColumns>, call);
}

cudaError_t AttendFp32(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return LaunchFp32<1>(stream, call);
  if (call.value_dim <= 32) return LaunchFp32<2>(stream, call);
  if (call.value_dim <= 64) return LaunchFp32<4>(stream, call);
  if (call.value_dim <= 128) return LaunchFp32<8>(stream, call);
  return LaunchFp32<16>(stream, call);
}

template <int kSteps, int kValueDim>
cudaError_t LaunchBf16(cudaStream_t stream, const DeviceCall& call) {
  return Launch(stream, call.num_tile_items, kTileThreads, tiles_bf16::SharedBytes(call.head_dim, call.value_dim),
                tiles_bf16::AttendTilesBf16<kSteps, kValueDim>, call);
}

// Queries are held in registers where keys are about as wide as values.
template <int kValueDim>
cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  constexpr int kSteps = kValueDim <= 128 ? kValueDim / tiles_bf16::kStep : 0;
  return tiles_bf16::Steps(call.head_dim) == kSteps ? LaunchBf16<kSteps, kValueDim>(stream, call)
                                                    : LaunchBf16<0, kValueDim>(stream, call);
}

cudaError_t AttendBf16(cudaStream_t stream, const DeviceCall& call) {
  if (call.value_dim <= 16) return AttendBf16<16>(stream, call);
  if (call.value_dim <= 32) return AttendBf16<32>(stream, call);
  if (call.value_dim <= 64) return AttendBf16<64>(stream, call);
  if (call.value_dim <= 128) return AttendBf16<128>(stream, call);
  return AttendBf16<256>(stream, call);
}

}  // namespace

cudaError_t AttendTiles(cudaStream_t stream, const DeviceCall& call) {
  if (call.num_tile_items == 0) return cudaSuccess;
  if (call.head_dim > kMaxTileDim || call.value_dim > kMaxTileDim) return cudaErrorInvalidValue;
  return call.k16 != nullptr ? AttendBf16(stream, call) : AttendFp32(stream, call);
}

}  // namespace edgewise::cuda
