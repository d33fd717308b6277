// Barriers in shared memory and the copying engine, as the emulator has them.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cuda/emulator_case.h"

namespace edgewise::cuda {
namespace {

struct Shared {
  alignas(1024) uint16_t box[64 * 64];
  emulator::SharedBarrier full, free;
  int turn;
};

Shared& SharedOf() { return *reinterpret_cast<Shared*>(emulator::DynamicShared()); }

cudaError_t LaunchShared(int threads, void (*kernel)(unsigned*), unsigned* out) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  return LaunchExtents(1, static_cast<unsigned>(threads), sizeof(Shared), kernel, out);
}

// Warp 0 counts turns that warp 1 reads, each before the next.
__global__ void PassTurns(unsigned* out) {
  Shared& shared = SharedOf();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    shared.full.Init(1);
    shared.free.Init(32);
  }
  __syncthreads();
  for (int turn = 0; turn < 5; ++turn) {
    if (threadIdx.x == 0) {
      shared.free.Wait(turn % 2 ^ 1);
      shared.turn = turn;
      shared.full.Arrive(0);
    } else if (warp == 1) {
      shared.full.Wait(turn % 2);
      out[threadIdx.x - 32] += static_cast<unsigned>(shared.turn * turn);
      shared.free.Arrive(0);
    }
  }
}

TEST(EmulatorAsyncTest, ThreadsWaitForTheirPhase) {
  InEveryOrder([] {
    const Buffer<unsigned> out(std::vector<unsigned>(32, 0));
    ASSERT_EQ(LaunchShared(64, PassTurns, out.data), cudaSuccess);
    EXPECT_EQ(out.Read(), std::vector<unsigned>(32, 1 + 4 + 9 + 16));
  });
}

__global__ void CopyOneBox(unsigned* out) {
  Shared& shared = SharedOf();
  uint16_t rows[3 * 72];
  for (int i = 0; i < 3 * 72; ++i) rows[i] = static_cast<uint16_t>(i + 1);
  shared.full.Init(1);
  shared.full.Arrive(sizeof(shared.box));
  emulator::CopyBox({rows, 72, 3, 2, 72, 0}, 16, 1, 1, 64, 64, shared.box, shared.full);
  shared.full.Wait(0);
  for (int i = 0; i < 64 * 64; ++i) out[i] = shared.box[i];
}

TEST(EmulatorAsyncTest, BoxesAreSwizzledAndZerosOutside) {
  const Buffer<unsigned> out(64 * 64);
  ASSERT_EQ(LaunchShared(1, CopyOneBox, out.data), cudaSuccess);
  const std::vector<unsigned> box = out.Read();
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      const bool inside = row < 2 && column + 16 < 72;
      const auto want = static_cast<unsigned>(inside ? (row + 1) * 72 + column + 17 : 0);
      EXPECT_EQ(box[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8], want) << row << " " << column;
    }
  }
}

__global__ void WaitForNobody(unsigned*) {
  SharedOf().full.Init(2);
  SharedOf().full.Arrive(0);
  SharedOf().full.Wait(0);
}
__global__ void ArriveTooOften(unsigned*) {
  SharedOf().full.Init(1);
  SharedOf().full.Arrive(8);
  SharedOf().full.Arrive(0);
}
__global__ void WaitUninitialised(unsigned*) { SharedOf().full.Wait(0); }

TEST(EmulatorAsyncDeathTest, MisuseIsReported) {
  EXPECT_DEATH(LaunchShared(1, WaitForNobody, nullptr), "can go on; .*a barrier in shared memory at .*async_test.cc");
  EXPECT_DEATH(LaunchShared(1, ArriveTooOften, nullptr), "an arrival that it does not await");
  EXPECT_DEATH(LaunchShared(1, WaitUninitialised, nullptr), "a barrier that is not initialised");
}

}  // namespace
}  // namespace edgewise::cuda
