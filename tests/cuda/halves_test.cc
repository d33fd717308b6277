// Halves of the emulator: conversions against their definition, products of fragments against float64.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "tests/cuda/emulator_case.h"

namespace edgewise::cuda {
namespace {

constexpr int kHalves = 1 << 16;

// By the format: sign, 5 bits of exponent, 10 of fraction.
double Value(int bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 0    ? std::ldexp(fraction, -24)
                 : exponent == 31 ? (fraction == 0 ? HUGE_VAL : NAN)
                                  : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -value : value;
}

TEST(HalvesTest, EveryHalfIsItsNumberAndComesBack) {
  for (int bits = 0; bits < kHalves; ++bits) {
    const float got = __half2float({static_cast<unsigned short>(bits)});
    if (std::isnan(Value(bits))) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_EQ(__float2half_rn(got).bits, 0x7FFF);
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), Value(bits)) << bits;
    ASSERT_EQ(std::signbit(got), bits >> 15 != 0) << bits;
    ASSERT_EQ(__float2half_rn(got).bits, bits);
  }
}

// The halves on both sides of `value`, which is not NaN, and which of them is nearest, ties to even.
void ExpectNearest(float value) {
  const int got = __float2half_rn(value).bits;
  ASSERT_EQ(got >> 15 != 0, std::signbit(value)) << value;
  const int size = got & 0x7FFF;
  ASSERT_LE(size, 0x7C00) << value;
  // Infinity lies where the next half would.
  const auto at = [](int bits) { return bits == 0x7C00 ? 65536.0 : Value(bits); };
  const double x = std::min(std::abs(static_cast<double>(value)), 65536.0), distance = std::abs(at(size) - x);
  for (const int other : {size - 1, size + 1}) {
    if (other < 0 || other > 0x7C00) continue;
    const double further = std::abs(at(other) - x);
    ASSERT_TRUE(distance < further || (distance == further && size % 2 == 0)) << value << " to " << size;
  }
}

TEST(HalvesTest, FloatsGoToTheNearestHalf) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const float any = __uint_as_float(static_cast<uint32_t>(random()));
    if (!std::isnan(any)) ExpectNearest(any);
    // Of the sizes that halves have.
    const int exponent = static_cast<int>(random() % 44) - 27;
    ExpectNearest(std::ldexp(static_cast<float>(random()), exponent - 32) * (i % 2 == 0 ? 1.0f : -1.0f));
  }
  for (int bits = 0; bits < 0x7C00; ++bits) {  // halfway, and beside it
    const auto halfway = static_cast<float>(0.5 * (Value(bits) + (bits == 0x7BFF ? 65536.0 : Value(bits + 1))));
    for (const float value : {halfway, std::nextafter(halfway, 0.0f), std::nextafter(halfway, 1e6f)}) {
      ExpectNearest(value);
    }
  }
}

TEST(HalvesTest, APairIsTheTwoHalvesLowOneFirst) {
  const __half2 pair = __floats2half2_rn(1.0f, -2.0f);
  uint32_t bits = 0;
  static_assert(sizeof(pair) == sizeof(bits));
  std::memcpy(&bits, &pair, sizeof(bits));
  EXPECT_EQ(bits, 0xC0003C00u);
  EXPECT_EQ(__half22float2(pair).x, 1.0f);
  EXPECT_EQ(__half22float2(pair).y, -2.0f);
}

uint32_t PairOf(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits = 0;
  std::memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__global__ void MultiplyHalves(const float* a, const float* b, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto pair_a = [&](int row, int k) { return PairOf(a[row * 16 + k], a[row * 16 + k + 1]); };
  const auto pair_b = [&](int k, int column) { return PairOf(b[k * 8 + column], b[(k + 1) * 8 + column]); };
  const uint32_t fragment_a[4] = {pair_a(g, 2 * t), pair_a(g + 8, 2 * t), pair_a(g, 2 * t + 8),
                                  pair_a(g + 8, 2 * t + 8)};
  const uint32_t fragment_b[2] = {pair_b(2 * t, g), pair_b(2 * t + 8, g)};
  float fragment_d[4];
  for (int i = 0; i < 4; ++i) fragment_d[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  MmaHalf(fragment_d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fragment_d[i];
}

TEST(HalvesTest, ProductsOfFragmentsAreTheSumsTowardsZero) {
  std::mt19937 random(2);
  const auto halves = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values) {
      const float size =
          std::ldexp(1.0f + static_cast<float>(random() % 1024) / 1024.0f, static_cast<int>(random() % 25) - 12);
      value = random() % 2 == 0 ? size : -size;
    }
    return values;
  };
  InEveryOrder([&] {
    const std::vector<float> a = halves(16 * 16), b = halves(16 * 8), d = halves(16 * 8);
    Buffer<float> device_a(a), device_b(b), device_d(d);
    ASSERT_EQ(Launch(nullptr, 1, 32, 0, MultiplyHalves, device_a.data, device_b.data, device_d.data), cudaSuccess);
    const std::vector<float> got = device_d.Read();
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double sum = d[row * 8 + column];
        for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row * 16 + k]) * b[k * 8 + column];
        const auto value = static_cast<double>(got[row * 8 + column]);
        ASSERT_LE(std::abs(value), std::abs(sum));
        ASSERT_GT(std::abs(std::nextafter(got[row * 8 + column], sum > 0 ? HUGE_VALF : -HUGE_VALF)), std::abs(sum));
        ASSERT_GE(value * sum, 0.0);
      }
    }
  });
}

TEST(HalvesTest, WhatIsNotFiniteStaysInItsRow) {
  std::vector<float> a(16 * 16, 1.0f), b(16 * 8, 1.0f);
  a[3 * 16 + 5] = NAN;
  a[11 * 16] = 1e30f;  // infinity, as a half
  Buffer<float> device_a(a), device_b(b), device_d(std::vector<float>(16 * 8, 0.0f));
  ASSERT_EQ(Launch(nullptr, 1, 32, 0, MultiplyHalves, device_a.data, device_b.data, device_d.data), cudaSuccess);
  const std::vector<float> got = device_d.Read();
  for (int i = 0; i < 16 * 8; ++i) {
    const int row = i / 8;
    ASSERT_TRUE(row == 3 ? std::isnan(got[i]) : row == 11 ? std::isinf(got[i]) : got[i] == 16.0f) << row;
  }
}

}  // namespace
}  // namespace edgewise::cuda
