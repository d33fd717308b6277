#include <cuda_bf16.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/activate.cuh"
#include "kernels/cuda/ops/gemv.h"

namespace edgewise::cuda {
namespace {

// One warp has one column of y.
constexpr int kColumnsPerBlock = 8;
constexpr int kThreads = kColumnsPerBlock * kWarpSize;

// Weights of a row that one thread reads at a time: 16 bytes.
template <typename Weight>
inline constexpr int kRun = 16 / sizeof(Weight);

__device__ inline Floats<4> LoadWeights(const float* from) { return LoadFloats<4>(from); }

__device__ inline Floats<8> LoadWeights(const __nv_bfloat16* from) {
  const uint4 pairs = *reinterpret_cast<const uint4*>(from);
  const uint32_t pair[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  Floats<8> value;
  for (int i = 0; i < 4; ++i) {
    value.at[2 * i] = __uint_as_float(pair[i] << 16);
    value.at[2 * i + 1] = __uint_as_float(pair[i] & 0xFFFF0000u);
  }
  return value;
}

struct Few {
  const float* bias;
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
  int64_t rows, out, in, in_padded, column_blocks;
  Activation activation;
  bool accumulate;
};

// kRows rows; a block has 8 columns of them. Lane l adds up columns l * kRun.. of every 32 * kRun of W, then the lanes'
// sums are added: an order that neither kRows nor kAligned changes.
template <typename Weight, int kRows, bool kAligned>
__global__ void __launch_bounds__(kThreads) GemvKernel(const Weight* weight, Few few) {
  constexpr int kPerLane = kRun<Weight>;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t column = blockIdx.x % few.column_blocks * kColumnsPerBlock + threadIdx.x / kWarpSize;
  const int64_t first = blockIdx.x / few.column_blocks * kRows;
  if (column >= few.out) return;
  const Weight* w_row = weight + column * few.in_padded;
  const float* x_row[kRows];
  float sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Rows beyond the last repeat the last one.
    const int64_t row = first + r < few.rows ? first + r : few.rows - 1;
    x_row[r] = few.x + row * few.x_stride;
    sum[r] = 0.0f;
  }
#pragma unroll(kAligned ? 4 : 1)
  for (int64_t i = lane * kPerLane; i < few.in_padded; i += kWarpSize * kPerLane) {
    const Floats<kPerLane> w = LoadWeights(w_row + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int part = 0; part < kPerLane; part += 4) {
        const Floats<4> x = LoadUpTo4<kAligned>(x_row[r] + i + part, FloatsHere(few.in - i - part));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float value = sizeof(Weight) == 4 ? x.at[e] : __bfloat162float(__float2bfloat16_rn(x.at[e]));
          sum[r] = fmaf(value, w.at[part + e], sum[r]);
        }
      }
    }
  }
  float mine = 0.0f;  // lane r keeps row r
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total = WarpSum(sum[r]);
    if (lane == r) mine = total;
  }
  if (lane >= kRows || first + lane >= few.rows) return;
  float* out = few.y + (first + lane) * few.y_stride + column;
  if (few.accumulate) mine += *out;
  if (few.bias != nullptr) mine += few.bias[column];
  *out = few.accumulate ? mine : Activate(few.activation, mine);
}

template <typename Weight, bool kAligned>
cudaError_t LaunchGemv(cudaStream_t stream, const Weight* weight, const Few& few) {
  const auto launch = [&](auto kernel, int64_t rows) {
    return Launch(stream, (few.rows + rows - 1) / rows * few.column_blocks, kThreads, 0, kernel, weight, few);
  };
  if (few.rows <= 1) return launch(kLoaded<GemvKernel<Weight, 1, kAligned>>, 1);
  if (few.rows <= 2) return launch(kLoaded<GemvKernel<Weight, 2, kAligned>>, 2);
  if (few.rows <= 4) return launch(kLoaded<GemvKernel<Weight, 4, kAligned>>, 4);
  // Reading element by element needs more registers.
  constexpr int kMost = kAligned ? 8 : 4;
  return launch(kLoaded<GemvKernel<Weight, kMost, kAligned>>, kMost);
}

}  // namespace

cudaError_t GemvLinear(cudaStream_t stream, const GemvWeights& weights, ConstMatrix x, Matrix y, bool accumulate) {
  Few few = {};
  few.bias = weights.bias;
  few.x = x.data;
  few.y = y.data;
  few.x_stride = x.stride;
  few.y_stride = y.stride;
  few.rows = x.rows;
  few.out = weights.out;
  few.in = weights.in;
  few.in_padded = weights.in_padded;
  few.column_blocks = (weights.out + kColumnsPerBlock - 1) / kColumnsPerBlock;
  few.activation = weights.activation;
  few.accumulate = accumulate;
  const bool aligned =
      weights.in == weights.in_padded && Aligned16(x.data, x.stride * static_cast<int64_t>(sizeof(float)));
  if (weights.bf16) {
    const auto* weight = static_cast<const __nv_bfloat16*>(weights.weight);
    return aligned ? LaunchGemv<__nv_bfloat16, true>(stream, weight, few)
                   : LaunchGemv<__nv_bfloat16, false>(stream, weight, few);
  }
  const auto* weight = static_cast<const float*>(weights.weight);
  return aligned ? LaunchGemv<float, true>(stream, weight, few) : LaunchGemv<float, false>(stream, weight, few);
}

}  // namespace edgewise::cuda
