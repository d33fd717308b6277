// Stands in for CUDA's cuda_fp16.h in emulated builds (see emulator.h): the types and the conversions in use.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_FP16_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_FP16_H_

#include "tests/cuda/emulator/device.h"

struct __half {
  unsigned short bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

// To the nearest, ties to even, subnormal numbers included; from 65,520 on infinity; every NaN becomes 0x7FFF.
inline __half __float2half_rn(float value) {
  const uint32_t bits = __float_as_uint(value), size = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  const auto signed_half = [&](uint32_t half) { return __half{static_cast<unsigned short>(sign | half)}; };
  if (size > 0x7F800000u) return {0x7FFF};
  if (size >= 0x477FF000u) return signed_half(0x7C00);
  // Below 2^-14 halves are multiples of 2^-24, as floats of [0.5, 1) are.
  if (size < 0x38800000u) return signed_half(__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u);
  return signed_half((size - (112u << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13);
}
inline float __half2float(__half half) {
  const uint32_t sign = (half.bits & 0x8000u) << 16, exponent = half.bits >> 10 & 31u, fraction = half.bits & 0x3FFu;
  if (exponent == 0) return __uint_as_float(__float_as_uint(static_cast<float>(fraction) * 0x1p-24f) | sign);
  return __uint_as_float(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13);
}
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_CUDA_FP16_H_
