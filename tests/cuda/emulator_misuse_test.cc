// The misuse that the emulator reports, each in every order of threads.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <utility>

#include "kernels/cuda/device/launch.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

enum Misuse {
  kBranchedBarriers,
  kLeavesBeforeBarrier,
  kMixedCollectives,
  kLeavesBeforeShuffle,
  kNotInItsMask,
  kReadsOutsideMask,
  kWaitsForever,
  kWritesBehindShared,
};

__global__ void Misused(Misuse which) {
  const int t = threadIdx.x;
  switch (which) {
    case kBranchedBarriers:
      if (t < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case kLeavesBeforeBarrier:
      if (t != 3) __syncthreads();
      break;
    case kMixedCollectives:
      if (t % 2 == 0) {
        __ballot_sync(kWholeWarp, 1);
      } else {
        __shfl_sync(kWholeWarp, t, 0);
      }
      break;
    case kLeavesBeforeShuffle:
      if (t != 31) __shfl_sync(kWholeWarp, t, 0);
      break;
    case kNotInItsMask:
      __syncwarp(0x0000FFFFu);
      break;
    case kReadsOutsideMask:
      if (t < 16) __shfl_sync(0x0000FFFFu, t, 16);
      break;
    case kWaitsForever:
      if (t < 16) {
        __syncwarp();
      } else {
        __syncthreads();
      }
      break;
    case kWritesBehindShared:
      if (t == 0) DynamicShared()[100] = 0;
      break;
  }
}

struct MisuseCase {
  Misuse which;
  const char* message;
};
void PrintTo(const MisuseCase& misuse, std::ostream* out) { *out << misuse.message; }
class EmulatorDeathTest : public testing::TestWithParam<MisuseCase> {};

TEST_P(EmulatorDeathTest, IsReported) {
  for (const emulator::Order order : {emulator::kForward, emulator::kBackward, emulator::Shuffled(7)}) {
    const auto misuse = [&] {
      emulator::SetOrder(order);
      Launch(nullptr, 1, 64, 100, Misused, GetParam().which);
    };
    EXPECT_DEATH(misuse(), GetParam().message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EmulatorDeathTest,
    testing::Values(MisuseCase{kBranchedBarriers,
                               "came to __syncthreads at .*emulator_misuse_test.cc.* threads of the block wait in"},
                    MisuseCase{kLeavesBeforeBarrier, "left the kernel"},
                    MisuseCase{kMixedCollectives,
                               "came to __.* \\(mask ffffffff\\) at .*, but lanes .* of its warp wait in __"},
                    MisuseCase{kLeavesBeforeShuffle, "left the kernel"},
                    MisuseCase{kNotInItsMask, "lane .* is not in the mask of its __syncwarp"},
                    MisuseCase{kReadsOutsideMask, "lane .* reads lane 16, which is not in the mask of __shfl_sync"},
                    MisuseCase{kWaitsForever, "no thread of the block can go on"},
                    MisuseCase{kWritesBehindShared, "wrote byte 100 of 100 bytes of shared memory|use-after-poison"}));

__global__ void WriteByte(char* out, int64_t at) { out[at] = 0; }

TEST(EmulatorMemoryDeathTest, MisuseIsReported) {
  char *device, host[8] = {};
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  EXPECT_DEATH(cudaFree(host), "was not allocated");
  EXPECT_DEATH(cudaFree(device + 1), "was not allocated");
  EXPECT_DEATH(cudaMemcpy(device + 4, host, 8, cudaMemcpyHostToDevice), "8 bytes at byte 4 of an allocation of 8");
  EXPECT_DEATH(cudaMemcpy(host, host, 8, cudaMemcpyDeviceToHost), "is not device memory");
  EXPECT_DEATH(cudaMemcpy(device, device, 8, cudaMemcpyHostToDevice), "is device memory");
  EXPECT_DEATH(cudaMemset(host, 0, 8), "is not device memory");
  EXPECT_DEATH(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(host)), "no stream");
  const auto overrun = [&] {
    Launch(nullptr, 1, 1, 0, WriteByte, device, 8);
    cudaFree(device);
  };
  EXPECT_DEATH(overrun(), "byte 8 of an allocation of 8 bytes was written|heap-buffer-overflow");
  cudaFree(device);
}

TEST(EmulatorMemoryDeathTest, MisuseOfThePoolAndOfPinnedMemoryIsReported) {
  char *plain, *pooled, *pinned;
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&plain, 8), cudaSuccess);
  ASSERT_EQ(cudaMallocAsync(&pooled, 8, stream), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 8), cudaSuccess);
  EXPECT_DEATH(cudaFreeAsync(plain, nullptr), "in another way or on another stream");
  EXPECT_DEATH(cudaFree(pooled), "in another way or on another stream");
  EXPECT_DEATH(cudaFreeAsync(pooled, nullptr), "in another way or on another stream");
  const auto freed_too_early = [&] {
    cudaFreeAsync(pooled, stream);
    cudaMemsetAsync(pooled, 0, 8, stream);
  };
  EXPECT_DEATH(freed_too_early(), "is not device memory");
  const auto upload = [&] { cudaMemcpyAsync(pooled, pinned, 8, cudaMemcpyHostToDevice, stream); };
  const auto overwritten = [&] {
    upload();
    pinned[3] = 'x';
    cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(overwritten(), "was written before the copy of it was done");
  const auto gone = [&] {
    upload();
    cudaFreeHost(pinned);
  };
  EXPECT_DEATH(gone(), "while a copy is in flight");
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pooled, stream), cudaSuccess);
  EXPECT_EQ(cudaFree(plain), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(EmulatorMemoryDeathTest, NothingWaitsForTheGridThatItIsPartOf) {
  char* device;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  const auto within = [&](std::function<void()> call) {
    emulator::AtStep(1, std::move(call));
    Launch(nullptr, 1, 1, 0, WriteByte, device, 0);
  };
  EXPECT_DEATH(within([&] { Launch(nullptr, 1, 1, 0, WriteByte, device, 0); }), "a launch within a grid");
  EXPECT_DEATH(within([&] { cudaDeviceSynchronize(); }), "cudaDeviceSynchronize within a grid");
  EXPECT_DEATH(within([&] { cudaFree(device); }), "cudaFree within a grid");
  cudaFree(device);
}

TEST(EmulatorMemoryDeathTest, GuardedMemoryIsForTheDeviceOnly) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // the environment is read once
  setenv("EDGEWISE_EMULATED_GUARD", "1", 1);
  const auto touch = [] {
    char* device;
    cudaMalloc(&device, 8);
    emulator::AtStep(1, [&] { cudaMemset(device, 0, 8); });  // by the first thread, before the second
    Launch(nullptr, 1, 2, 0, WriteByte, device, 0);
    std::fputs("the kernel may\n", stderr);
    *static_cast<volatile char*>(device) = 1;
    std::fputs("the host may\n", stderr);
    std::_Exit(1);
  };
  EXPECT_DEATH(touch(),
               testing::AllOf(testing::HasSubstr("the kernel may"), testing::Not(testing::HasSubstr("the host may"))));
  unsetenv("EDGEWISE_EMULATED_GUARD");
  testing::FLAGS_gtest_death_test_style = "fast";
}

}  // namespace
}  // namespace edgewise::cuda
