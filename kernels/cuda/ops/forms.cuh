// Writes numbers in the forms of forms.h.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_FORMS_CUH_
#define EDGEWISE_KERNELS_CUDA_OPS_FORMS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/activate.cuh"
#include "kernels/cuda/ops/forms.h"

namespace edgewise::cuda {

// kWidth neighbouring columns of a row: 1, 2, 4 or 8, `to` aligned by as many. As parts, to six places `stride`
// elements apart.
template <Packing kPacking, int kWidth>
__device__ inline void Pack(const float (&from)[kWidth], __nv_bfloat16* to, int64_t stride) {
  constexpr int kProducts = kPacking == Packing::kRounded ? 1 : kPartProducts;
  constexpr int kPart[2][6] = {{2, 0, 1, 1, 0, 0}, {0, 2, 1, 0, 1, 0}};
  using Words =
      std::conditional_t<kWidth == 8, uint4,
                         std::conditional_t<kWidth == 4, uint2, std::conditional_t<kWidth == 2, uint32_t, uint16_t>>>;
  static_assert(sizeof(Words) == kWidth * sizeof(__nv_bfloat16));
  union {
    Words words;
    __nv_bfloat16 at[kWidth];
  } packed[kProducts];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kPacking == Packing::kRounded) {
      packed[0].at[i] = __float2bfloat16_rn(from[i]);
    } else {
      constexpr unsigned kExponent = 0x7F800000u;
      const unsigned bits = __float_as_uint(from[i]);
      const bool finite = (bits & kExponent) != kExponent;
      float rest = from[i], part[3];
      part[0] = __bfloat162float(__float2bfloat16_rn(rest));
      // A finite number that would be rounded to infinity is cut off.
      if (finite && (__float_as_uint(part[0]) & kExponent) == kExponent) part[0] = __uint_as_float(bits & 0xFFFF0000u);
      rest -= part[0];
      part[1] = __bfloat162float(__float2bfloat16_rn(rest));
      part[2] = rest - part[1];
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const float value = part[kPart[kPacking == Packing::kPartsOfW][j]];
        packed[j].at[i] = __float2bfloat16_rn(finite ? value : j + 1 == kProducts ? from[i] : 0.0f);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kProducts; ++j) *reinterpret_cast<Words*>(to + j * stride) = packed[j].words;
}

// kWidth neighbouring columns of row `row`, from a multiple of kWidth on.
template <int kWidth>
__device__ inline void Store(const FormRows& to, int64_t row, int64_t column, const float (&value)[kWidth]) {
  float* const at = to.data + row * to.stride;
  auto* const halves = reinterpret_cast<__nv_bfloat16*>(at);
  if (to.form == Form::kFloat32) {
    Floats<kWidth> floats;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) floats.at[i] = value[i];
    StoreFloats<kWidth>(at + column, floats);
  } else if (to.form == Form::kBfloat16) {
    Pack<Packing::kRounded>(value, halves + column, 0);
  } else {
    const int64_t before = static_cast<unsigned>(column) / static_cast<unsigned>(to.slice) * to.slice;
    Pack<Packing::kPartsOfX>(value, halves + kPartProducts * before + (column - before), to.slice);
  }
}

// The product's columns, finished but not written.
template <int kWidth>
__device__ inline void Apply(const Finish& finish, int64_t row, int64_t column, Floats<kWidth>& value) {
  if (finish.accumulate) {
    const Floats<kWidth> before = LoadFloats<kWidth>(finish.y.data + row * finish.y.stride + column);
    for (int i = 0; i < kWidth; ++i) value.at[i] += before.at[i];
  }
  if (finish.bias != nullptr) {
    const Floats<kWidth> bias = LoadFloats<kWidth>(finish.bias + column);
    for (int i = 0; i < kWidth; ++i) value.at[i] += bias.at[i];
  }
  if (!finish.accumulate) {
    for (int i = 0; i < kWidth; ++i) value.at[i] = Activate(finish.activation, value.at[i]);
  }
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_FORMS_CUH_
