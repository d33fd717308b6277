// Runs of floats that one thread moves at a time.
#ifndef EDGEWISE_KERNELS_CUDA_DEVICE_VECTOR_CUH_
#define EDGEWISE_KERNELS_CUDA_DEVICE_VECTOR_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"

namespace edgewise::cuda {

// kWidth floats; 4 of them are moved by one 16-byte access and lie 16-byte aligned, 2 are stored by one of 8 bytes.
template <int kWidth>
struct Floats {
  float at[kWidth];
};

template <int kWidth>
__device__ inline Floats<kWidth> LoadFloats(const float* from) {
  Floats<kWidth> value;
  if constexpr (kWidth == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    value.at[0] = four.x, value.at[1] = four.y, value.at[2] = four.z, value.at[3] = four.w;
  } else {
    for (int i = 0; i < kWidth; ++i) value.at[i] = from[i];
  }
  return value;
}

template <int kWidth>
__device__ inline void StoreFloats(float* to, const Floats<kWidth>& value) {
  if constexpr (kWidth == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(value.at[0], value.at[1], value.at[2], value.at[3]);
  } else if constexpr (kWidth == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(value.at[0], value.at[1]);
  } else {
    for (int i = 0; i < kWidth; ++i) to[i] = value.at[i];
  }
}

// Four floats, or four rounded ones.
__device__ inline void StoreFour(float* to, const Floats<4>& value) { StoreFloats<4>(to, value); }
__device__ inline void StoreFour(__nv_bfloat16* to, const Floats<4>& value) {
  auto* const pairs = reinterpret_cast<__nv_bfloat162*>(to);
  pairs[0] = __floats2bfloat162_rn(value.at[0], value.at[1]);
  pairs[1] = __floats2bfloat162_rn(value.at[2], value.at[3]);
}

__device__ inline int FloatsHere(int64_t left) { return left < 4 ? static_cast<int>(left) : 4; }

// The first `count` of 4 floats, then zeros. Aligned: all 4 are there, and 16-byte aligned.
template <bool kAligned>
__device__ inline Floats<4> LoadUpTo4(const float* from, int count) {
  if constexpr (kAligned) {
    return LoadFloats<4>(from);
  } else {
    Floats<4> value;
    for (int i = 0; i < 4; ++i) value.at[i] = i < count ? from[i] : 0.0f;
    return value;
  }
}

template <bool kAligned>
__device__ inline void StoreUpTo4(float* to, int count, const Floats<4>& value) {
  if constexpr (kAligned) {
    StoreFloats<4>(to, value);
  } else {
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = value.at[i];
    }
  }
}

// Sum over a warp, the same in every lane and in one order.
template <typename T>
__device__ inline T WarpSum(T value) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

// Whether rows of a matrix may be read by 16 bytes.
inline bool Aligned16(const void* data, int64_t stride_bytes) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_DEVICE_VECTOR_CUH_
