// The emulator itself: what threads, warps and blocks compute as CUDA would.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/mma.cuh"
#include "tests/cuda/emulator_case.h"

namespace edgewise::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(EmulatorTest, EveryThreadRunsOnceWithItsIndices) {
  InEveryOrder([] {
    const size_t count = 2 * 3 * 4 * 5 * 6 * 2;
    Buffer<unsigned> out(std::vector<unsigned>(count, 0));
    ASSERT_EQ(LaunchExtents({2, 3, 4}, {5, 6, 2}, 0, CountIndices, out.data), cudaSuccess);
    std::vector<unsigned> expected(count);
    for (size_t i = 0; i < count; ++i) expected[i] = i + 1;
    EXPECT_EQ(out.Read(), expected);
  });
}

__global__ void AddUpBlock(const float* in, float* out) {
  __shared__ float warp_sums[32];
  float sum = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < blockDim.x / 32 ? warp_sums[threadIdx.x] : 0.0f;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(kWholeWarp, sum, step);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST(EmulatorTest, BlockReductionIsTheSameInEveryOrder) {
  InEveryOrder([] {
    std::vector<float> in(3 * 1024);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 17);
    Buffer<float> from(in), to(3);
    ASSERT_EQ(Launch(nullptr, 3, 1024, 0, AddUpBlock, from.data, to.data), cudaSuccess);
    for (int b = 0; b < 3; ++b) {
      float sum = 0.0f;
      for (int i = 0; i < 1024; ++i) sum += in[b * 1024 + i];
      EXPECT_EQ(to.Read()[b], sum);
    }
  });
}

// Each thread reads what another wrote, with no barrier in between.
__global__ void ReadWithoutBarrier(int other, float* out) {
  float* shared = reinterpret_cast<float*>(DynamicShared());
  shared[threadIdx.x] = 1.0f;
  out[threadIdx.x] = shared[(threadIdx.x + other) % blockDim.x];
}

TEST(EmulatorTest, MissingBarrierShowsInOneOfTheOrders) {
  Buffer<float> out(64);
  ASSERT_EQ(Launch(nullptr, 1, 64, 64 * sizeof(float), ReadWithoutBarrier, 1, out.data), cudaSuccess);
  EXPECT_TRUE(std::isnan(out.Read()[0]));
  emulator::SetOrder(emulator::kBackward);
  ASSERT_EQ(Launch(nullptr, 1, 64, 64 * sizeof(float), ReadWithoutBarrier, 1, out.data), cudaSuccess);
  emulator::SetOrder(emulator::kForward);
  EXPECT_EQ(out.Read()[0], 1.0f);
}

__global__ void Barriers(int* out) {
  int* counter = reinterpret_cast<int*>(DynamicShared());
  if (threadIdx.x == 0) *counter = 0;
  __syncthreads();
  int good = 1;
  for (int round = 1; round <= 10; ++round) {
    atomicAdd(counter, 1);
    __syncthreads();
    good &= *counter == round * static_cast<int>(blockDim.x);
    good &= __syncthreads_count(threadIdx.x % 3 == 0) == static_cast<int>(blockDim.x + 2) / 3;
    good &= __syncthreads_or(threadIdx.x == 5) == 1 && __syncthreads_or(0) == 0;
    good &= __syncthreads_and(1) == 1 && __syncthreads_and(threadIdx.x != 5) == 0;
  }
  out[threadIdx.x] = good;
}

TEST(EmulatorTest, BarriersHoldTheWholeBlock) {
  InEveryOrder([] {
    for (const int threads : {32, 40, 1024}) {
      Buffer<int> out(threads);
      ASSERT_EQ(Launch(nullptr, 1, threads, sizeof(int), Barriers, out.data), cudaSuccess);
      EXPECT_THAT(out.Read(), Each(1));
    }
  });
}

constexpr int kShuffles = 10;
__global__ void Shuffles(int* out) {
  const int lane = threadIdx.x;
  int* mine = out + lane * kShuffles;
  mine[0] = __shfl_sync(kWholeWarp, lane, 5);
  mine[1] = __shfl_sync(kWholeWarp, lane, 35);
  mine[2] = __shfl_sync(kWholeWarp, lane, 3, 8);
  mine[3] = __shfl_up_sync(kWholeWarp, lane, 2u);
  mine[4] = __shfl_up_sync(kWholeWarp, lane, 2u, 8);
  mine[5] = __shfl_down_sync(kWholeWarp, lane, 3u);
  mine[6] = __shfl_down_sync(kWholeWarp, lane, 3u, 8);
  mine[7] = __shfl_xor_sync(kWholeWarp, lane, 9);
  mine[8] = __shfl_xor_sync(kWholeWarp, lane, 9, 8);  // to a later group: its own; to an earlier one: of that
  mine[9] = __shfl_xor_sync(kWholeWarp, lane + 0.5, 1) == (lane ^ 1) + 0.5 &&
            __shfl_sync(kWholeWarp, uint64_t{1} << 32 | lane, 0) == uint64_t{1} << 32;
}

TEST(EmulatorTest, ShufflesReadAsTheProgrammingGuideSays) {
  InEveryOrder([] {
    Buffer<int> out(32 * kShuffles);
    ASSERT_EQ(Launch(nullptr, 1, 32, 0, Shuffles, out.data), cudaSuccess);
    const std::vector<int> values = out.Read();
    for (int lane = 0; lane < 32; ++lane) {
      const int place = lane % 8, group = lane - place;
      EXPECT_THAT(std::vector<int>(values.begin() + lane * kShuffles, values.begin() + (lane + 1) * kShuffles),
                  ElementsAre(5, 3, group + 3, lane < 2 ? lane : lane - 2, place < 2 ? lane : lane - 2,
                              lane > 28 ? lane : lane + 3, place > 4 ? lane : lane + 3, lane ^ 9,
                              (lane ^ 9) > group + 7 ? lane : lane ^ 9, 1))
          << "lane " << lane;
    }
  });
}

__global__ void Votes(unsigned* out) {
  const int lane = threadIdx.x;
  const unsigned odd = __ballot_sync(kWholeWarp, lane & 1);
  const bool any = __any_sync(kWholeWarp, lane == 7) && !__any_sync(kWholeWarp, 0);
  const bool all = __all_sync(kWholeWarp, lane < 32) && !__all_sync(kWholeWarp, lane < 31);
  // Halves of the warp go their own ways, at their own pace.
  unsigned half = 0;
  if (lane < 16) {
    for (int i = 0; i < 3; ++i) half = __ballot_sync(0x0000FFFFu, lane == i);
  } else {
    half = __ballot_sync(0xFFFF0000u, lane == 20);
  }
  __syncwarp();
  out[lane] = odd == 0xAAAAAAAAu && any && all ? half : 0;
}

TEST(EmulatorTest, VotesOfWholeAndHalfWarps) {
  InEveryOrder([] {
    Buffer<unsigned> out(32);
    ASSERT_EQ(Launch(nullptr, 1, 32, 0, Votes, out.data), cudaSuccess);
    std::vector<unsigned> expected(32, 1u << 2);
    std::fill(expected.begin() + 16, expected.end(), 1u << 20);
    EXPECT_EQ(out.Read(), expected);
  });
}

__global__ void Atomics(unsigned* u, unsigned long long* w) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&u[0], t);
  atomicMax(&u[1], t);
  atomicMin(&u[2], t);
  atomicOr(&u[3], 1u << t % 32);
  if (atomicCAS(&u[4], 0u, t + 1) == 0) atomicAdd(&u[5], 1u);
  atomicAdd(&w[0], 1ull << 32);
  atomicMax(&w[1], static_cast<unsigned long long>(t) << 32);
}

TEST(EmulatorTest, Atomics) {
  InEveryOrder([] {
    Buffer<unsigned> u({0, 0, 1000, 0, 0, 0});
    Buffer<unsigned long long> w({0, 0});
    ASSERT_EQ(Launch(nullptr, 4, 64, 0, Atomics, u.data, w.data), cudaSuccess);
    std::vector<unsigned> values = u.Read();
    EXPECT_GE(values[4], 1u);  // whoever came first
    values[4] = 0;
    EXPECT_THAT(values, ElementsAre(255 * 256 / 2, 255, 0, ~0u, 0, 1));
    EXPECT_THAT(w.Read(), ElementsAre(256ull << 32, 255ull << 32));
  });
}

__global__ void BitsAndNumbers(int* out) {
  int n = 0;
  out[n++] = __popc(0xF0F0u) == 8 && __popcll(~0ull) == 64;
  out[n++] = __ffs(0) == 0 && __ffs(8) == 4 && __ffsll(1ll << 40) == 41;
  out[n++] = __clz(0) == 32 && __clz(1) == 31 && __clzll(0) == 64 && __clzll(1) == 63;
  out[n++] = __umulhi(0xFFFFFFFFu, 0xFFFFFFFFu) == 0xFFFFFFFEu;
  out[n++] = __uint_as_float(0x3F800000u) == 1.0f && __float_as_uint(-0.0f) == 0x80000000u;
  out[n++] = __longlong_as_double(__double_as_longlong(0.1)) == 0.1;
  out[n++] = min(3, 4u) == 3u && max(1.0f, 2.0f) == 2.0f && max(int64_t{1} << 40, 1) == int64_t{1} << 40;
  out[n++] = rsqrtf(4.0f) == 0.5f && __expf(0.0f) == 1.0f && fmaxf(1.0f, NAN) == 1.0f;
  out[n++] = __bfloat162float(__float2bfloat16_rn(1.00390625f)) == 1.0f;       // halfway: to even
  out[n++] = __bfloat162float(__float2bfloat16_rn(1.01171875f)) == 1.015625f;  // halfway: to even
  out[n++] = isnan(__bfloat162float(__float2bfloat16_rn(__uint_as_float(0x7F800001u))));
  out[n++] = isinf(__bfloat162float(__float2bfloat16_rn(3.4e38f)));
}

TEST(EmulatorTest, BitsAndNumbers) {
  Buffer<int> out(12);
  ASSERT_EQ(Launch(nullptr, 1, 1, 0, BitsAndNumbers, out.data), cudaSuccess);
  EXPECT_THAT(out.Read(), Each(1));
}

__global__ void MultiplyTile(const float* a, const float* b, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto pair_a = [&](int row, int k) { return PackBf16(a[row * 16 + k], a[row * 16 + k + 1]); };
  const auto pair_b = [&](int k, int column) { return PackBf16(b[k * 8 + column], b[(k + 1) * 8 + column]); };
  const uint32_t fragment_a[4] = {pair_a(g, 2 * t), pair_a(g + 8, 2 * t), pair_a(g, 2 * t + 8),
                                  pair_a(g + 8, 2 * t + 8)};
  const uint32_t fragment_b[2] = {pair_b(2 * t, g), pair_b(2 * t + 8, g)};
  float fragment_d[4];
  for (int i = 0; i < 4; ++i) fragment_d[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  MmaBf16(fragment_d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fragment_d[i];
}

TEST(EmulatorTest, TensorCoreProductIsThePlainProduct) {
  InEveryOrder([] {
    std::vector<float> a(16 * 16), b(16 * 8), d(16 * 8);  // small integers: exact in bf16 and in every sum
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int>(i * 7 % 31) - 15;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int>(i * 5 % 23) - 11;
    for (size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(i);
    Buffer<float> device_a(a), device_b(b), device_d(d);
    ASSERT_EQ(Launch(nullptr, 1, 32, 0, MultiplyTile, device_a.data, device_b.data, device_d.data), cudaSuccess);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        for (int k = 0; k < 16; ++k) d[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
      }
    }
    EXPECT_EQ(device_d.Read(), d);
  });
}

__global__ void PackPairs(const float* from, uint32_t* to) {
  to[threadIdx.x] = PackBf16(from[2 * threadIdx.x], from[2 * threadIdx.x + 1]);
}

// Floats halfway between two bf16 go to the even one, the others to the nearer one; the first is the low half.
TEST(EmulatorTest, PairsOfBf16AreRoundedToTheNearestAndToEvenBetweenTwo) {
  const struct {
    uint32_t bits;
    uint16_t rounded;
  } cases[] = {
      {0x3F800000, 0x3F80}, {0x3F807FFF, 0x3F80}, {0x3F808000, 0x3F80}, {0x3F808001, 0x3F81},  // above an even one
      {0x3F817FFF, 0x3F81}, {0x3F818000, 0x3F82}, {0x3F818001, 0x3F82}, {0x3FFFFFFF, 0x4000},  // above an odd one
      {0xBF808000, 0xBF80}, {0xBF818000, 0xBF82}, {0xBF80FFFF, 0xBF81}, {0x80000000, 0x8000},  // below 0
      {0x00008000, 0x0000}, {0x00008001, 0x0001}, {0x7F7FFFFF, 0x7F80}, {0x7F800000, 0x7F80},  // the ends
  };
  std::vector<float> floats;
  std::vector<uint32_t> expected;
  for (const auto& low : cases) {
    for (const auto& high : cases) {
      floats.push_back(__uint_as_float(low.bits));
      floats.push_back(__uint_as_float(high.bits));
      expected.push_back(low.rounded | static_cast<uint32_t>(high.rounded) << 16);
    }
  }
  const Buffer<float> from(floats);
  const Buffer<uint32_t> to(expected.size());
  ASSERT_EQ(Launch(nullptr, 1, static_cast<int>(expected.size()), 0, PackPairs, from.data, to.data), cudaSuccess);
  EXPECT_EQ(to.Read(), expected);
}

__global__ void LoadTiles(bool transposed, unsigned* out) {
  uint16_t* tiles = reinterpret_cast<uint16_t*>(DynamicShared());  // [4, 8, 8]: element i is i
  for (int i = threadIdx.x; i < 256; i += 32) tiles[i] = i;
  __syncwarp();
  uint32_t to[4];
  emulator::LoadMatrices(transposed, tiles + threadIdx.x * 8, to);
  for (int i = threadIdx.x; i < 256; i += 32) tiles[i] = 0;  // no thread may see this
  for (int m = 0; m < 4; ++m) out[threadIdx.x * 4 + m] = to[m];
}

TEST(EmulatorTest, MatricesAreLoadedAtOnce) {
  InEveryOrder([] {
    for (const bool transposed : {false, true}) {
      Buffer<unsigned> out(32 * 4);
      ASSERT_EQ(Launch(nullptr, 1, 32, 512, LoadTiles, transposed, out.data), cudaSuccess);
      std::vector<unsigned> expected;
      for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned m = 0; m < 4; ++m) {
          const unsigned low = m * 64 + (transposed ? 2 * t * 8 + g : g * 8 + 2 * t);
          expected.push_back(low | (low + (transposed ? 8 : 1)) << 16);
        }
      }
      EXPECT_EQ(out.Read(), expected);
    }
  });
}

}  // namespace
}  // namespace edgewise::cuda
