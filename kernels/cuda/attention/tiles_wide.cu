#include <cuda_runtime.h>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/tiles_wide.cuh"
#include "kernels/cuda/attention/tiles_wide_fp32.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/tensor_map.h"

namespace edgewise::cuda {
namespace {

using tiles_wide::kThreads;

template <template <int> typename EdgesOf>
cudaError_t Attend(cudaStream_t stream, const TensorMap& keys, const TensorMap& values, const DeviceCall& call) {
  const auto launch = [&](size_t shared, auto kernel, const auto&... arguments) {
    return Launch(stream, EdgesOf<tiles_wide::kKeys>::Count(call), kThreads, shared, kernel, arguments...);
  };
  if (!call.bf16) {
    return launch(tiles_wide_fp32::kSharedBytes, kLoaded<tiles_wide_fp32::AttendTilesWide<EdgesOf>>, call);
  }
  return call.head_dim == 64 ? launch(tiles_wide::kSharedBytes<64>, kLoaded<tiles_wide::AttendTilesWide<EdgesOf, 64>>,
                                      keys, values, call)
                             : launch(tiles_wide::kSharedBytes<128>, kLoaded<tiles_wide::AttendTilesWide<EdgesOf, 128>>,
                                      keys, values, call);
}

__global__ void FindWgmma(bool* found) {
#ifdef EDGEWISE_HAS_WGMMA
  *found = true;
#else
  *found = false;
#endif
}

}  // namespace

cudaError_t HasWideTiles(cudaStream_t stream, bool* found) {
  return Launch(stream, 1, 1, 0, kLoaded<FindWgmma>, found);
}

cudaError_t AttendWideTiles(cudaStream_t stream, const DeviceCall& call) {
  if (!call.wide || call.num_wide_items + call.num_dense_items == 0) return cudaSuccess;
  TensorMap keys = {}, values = {};
  cudaError_t error = cudaSuccess;
  if (call.bf16) {
    const int64_t columns = call.head_dim, rows = call.key_rows, heads = call.num_heads / call.heads_of_key;
    const auto map_of = [&](const __nv_bfloat16* data, int64_t stride, int64_t head_stride, TensorMap& map) {
      const Matrices apart = {data, columns, rows, heads, stride, head_stride};
      const Matrices in_rows = {data, heads * columns, rows, 1, stride, rows * stride};
      return MakeTensorMap(tiles_wide::HeadsLieInRows(call) ? in_rows : apart, map);
    };
    error = map_of(call.k16, call.k16_stride, call.k16_head_stride, keys);
    if (error == cudaSuccess) error = map_of(call.v16, call.v16_stride, call.v16_head_stride, values);
  }
  if (error == cudaSuccess) error = Attend<tiles_wide::Limits>(stream, keys, values, call);
  return error == cudaSuccess ? Attend<tiles_wide::Bits>(stream, keys, values, call) : error;
}

}  // namespace edgewise::cuda
