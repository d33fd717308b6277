// The emulator's runtime: launches and their limits, memory, copies, streams, and failures that a test asks for.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/device/launch.h"
#include "tests/cuda/emulator_case.h"

namespace edgewise::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;

__global__ void LookAtShared(unsigned* out) {
  [[maybe_unused]] __shared__ unsigned kept;
  const unsigned* dynamic = reinterpret_cast<const unsigned*>(DynamicShared());
  out[blockIdx.x] = dynamic[100];
#if !defined(__SANITIZE_ADDRESS__)
  out[blockIdx.x] &= kept;
#endif
  kept = 1;
  const_cast<unsigned*>(dynamic)[100] = 1;
}

TEST(EmulatorRuntimeTest, SharedMemoryIsNewInEveryBlock) {
  Buffer<unsigned> out(3);
  ASSERT_EQ(Launch(nullptr, 3, 1, 404, LookAtShared, out.data), cudaSuccess);
  EXPECT_THAT(out.Read(), Each(~0u));
}

TEST(EmulatorRuntimeTest, MoreSharedMemoryMustBeAskedFor) {
  Buffer<unsigned> out(1000);
  EXPECT_EQ(LaunchExtents(1, 1, 48 << 10, CountIndices, out.data), cudaSuccess);
  EXPECT_EQ(LaunchExtents(1, 1, (48 << 10) + 1, CountIndices, out.data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(CountIndices, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(CountIndices, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10), cudaSuccess);
  EXPECT_EQ(LaunchExtents(1, 1, 227 << 10, CountIndices, out.data), cudaSuccess);
  EXPECT_EQ(LaunchExtents(1, {32, 33}, 0, CountIndices, out.data), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchExtents({1, 65536}, 1, 0, CountIndices, out.data), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchExtents(0, 1, 0, CountIndices, out.data), cudaErrorInvalidConfiguration);
}

// Every thread notes what the word holds when it comes.
__global__ void Look(const int* word, int* out) {
  out[threadIdx.x] = *static_cast<const volatile int*>(word);
  __syncthreads();
  out[blockDim.x + threadIdx.x] = *static_cast<const volatile int*>(word);
}

TEST(EmulatorRuntimeTest, WorkBetweenTheStepsOfAGrid) {
  Buffer<int> word(1), out(12);
  const uint64_t before = emulator::Steps();
  for (const int step : {1, 4, 6, 8, 12}) {
    ASSERT_EQ(cudaMemset(word.data, 0, sizeof(int)), cudaSuccess);
    const int one = 1;
    emulator::AtStep(step, [&] { cudaMemcpy(word.data, &one, sizeof(one), cudaMemcpyHostToDevice); });
    ASSERT_EQ(Launch(nullptr, 1, 6, 0, Look, word.data, out.data), cudaSuccess);
    std::vector<int> want;  // six come to the barrier, and six leave
    for (int i = 0; i < 12; ++i) want.push_back(i < step ? 0 : 1);
    EXPECT_EQ(out.Read(), want) << step;
  }
  EXPECT_EQ(emulator::Steps() - before, 60u);
}

// Block 0 says that it runs; blocks wait a little while the word is 0.
__global__ void Wait(const int* word, int* out, std::atomic<bool>* runs) {
  *runs = true;
  out[blockIdx.x] = *word;
  if (*word == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(EmulatorRuntimeTest, OtherThreadsWorkBetweenTheBlocksOfAGrid) {
  constexpr int kBlocks = 10000;
  Buffer<int> word(std::vector<int>{0}), out(kBlocks), counts(std::vector<int>(4, 0));
  std::atomic<bool> runs = false;
  std::thread other([&] {
    while (!runs) std::this_thread::yield();
    const int one = 1;
    EXPECT_EQ(cudaMemcpy(word.data, &one, sizeof(one), cudaMemcpyHostToDevice), cudaSuccess);
    // This does not run in between, and this waits.
    EXPECT_EQ(Launch(nullptr, 1, 4, 0, CountIndices, reinterpret_cast<unsigned*>(counts.data)), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(out.Read().back(), 1);
  });
  ASSERT_EQ(Launch(nullptr, kBlocks, 1, 0, Wait, word.data, out.data, &runs), cudaSuccess);
  other.join();
  EXPECT_EQ(out.Read().front(), 0);
  EXPECT_EQ(out.Read().back(), 1) << "it was let in";
  EXPECT_THAT(counts.Read(), ElementsAre(1, 2, 3, 4));
}

TEST(EmulatorRuntimeTest, FailsForGoodAfterSoManyLaunches) {
  Buffer<unsigned> out(std::vector<unsigned>(4, 0));
  const uint64_t before = emulator::launches();
  emulator::FailAfter(2);
  EXPECT_EQ(Launch(nullptr, 1, 4, 0, CountIndices, out.data), cudaSuccess);
  EXPECT_EQ(Launch(nullptr, 1, 4, 0, CountIndices, out.data), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(Launch(nullptr, 1, 4, 0, CountIndices, out.data), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  void* pointer;
  EXPECT_EQ(cudaMalloc(&pointer, 1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorIllegalAddress");
  emulator::FailAfter(-1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(emulator::launches() - before, 2u);
  EXPECT_THAT(out.Read(), ElementsAre(2, 4, 6, 8));
}

TEST(EmulatorRuntimeTest, MemoryIsLimitedCountedAndFilled) {
  const size_t allocations = emulator::LiveAllocations(), bytes = emulator::LiveBytes();
  emulator::SetMemoryLimit(bytes + 1000);
  unsigned char *a, *b;
  ASSERT_EQ(cudaMalloc(&a, 600), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(b, nullptr);
  ASSERT_EQ(cudaMalloc(&b, 400), cudaSuccess);
  size_t free, total;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(emulator::LiveAllocations(), allocations + 2);
  std::vector<unsigned char> read(400);
  EXPECT_EQ(cudaMemcpy(read.data(), b, 400, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_THAT(read, Each(0xFF));
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(b), cudaSuccess);
  EXPECT_EQ(emulator::LiveAllocations(), allocations);
  EXPECT_EQ(emulator::LiveBytes(), bytes);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  emulator::SetMemoryLimit(size_t{16} << 30);
}

TEST(EmulatorRuntimeTest, ThePoolKeepsWhatIsFreedUpToItsThreshold) {
  constexpr size_t kGrain = size_t{2} << 20;
  const size_t bytes = emulator::LiveBytes();
  cudaMemPool_t pool;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  const auto set_threshold = [&](uint64_t threshold) {
    EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  };
  set_threshold(kGrain);
  emulator::SetMemoryLimit(bytes + 3 * kGrain + 1000);
  char *a, *b;
  ASSERT_EQ(cudaMallocAsync(&a, 2 * kGrain, nullptr), cudaSuccess);
  EXPECT_EQ(emulator::LiveBytes(), bytes + 2 * kGrain);
  EXPECT_EQ(cudaMallocAsync(&b, kGrain + 1, nullptr), cudaErrorMemoryAllocation);
  EXPECT_EQ(b, nullptr);
  ASSERT_EQ(cudaMallocAsync(&b, 1, nullptr), cudaSuccess);
  EXPECT_EQ(emulator::LiveBytes(), bytes + 3 * kGrain);
  EXPECT_EQ(cudaFreeAsync(a, nullptr), cudaSuccess);
  const uint64_t taken = emulator::TakenSoFar().device_memory;
  ASSERT_EQ(cudaMallocAsync(&a, kGrain, nullptr), cudaSuccess);
  EXPECT_EQ(emulator::TakenSoFar().device_memory, taken) << "free memory is used first";
  EXPECT_EQ(emulator::LiveBytes(), bytes + 3 * kGrain) << "the host has not waited";
  EXPECT_EQ(cudaFreeAsync(a, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(emulator::LiveBytes(), bytes + 2 * kGrain);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(emulator::LiveBytes(), bytes + kGrain) << "for what is in use";
  EXPECT_EQ(cudaFreeAsync(b, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(emulator::LiveBytes(), bytes);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  set_threshold(0);
  emulator::SetMemoryLimit(size_t{16} << 30);
}

TEST(EmulatorRuntimeTest, CopiesOfPinnedMemoryAreDoneWhenTheHostHasWaited) {
  cudaStream_t stream, other;
  cudaEvent_t first, second;
  char* pinned;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&first), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&second), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 8), cudaSuccess);
  Buffer<char> memory(std::vector<char>{'a', 'b'});
  EXPECT_EQ(cudaEventQuery(first), cudaSuccess) << "never recorded";
  ASSERT_EQ(cudaMemcpyAsync(pinned, memory.data, 2, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(first, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned + 4, memory.data, 2, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(second, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(first), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_NE(pinned[0], 'a');
  EXPECT_EQ(cudaEventSynchronize(first), cudaSuccess);
  EXPECT_EQ(pinned[0], 'a');
  EXPECT_NE(pinned[4], 'a');
  EXPECT_EQ(cudaEventQuery(second), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(pinned[5], 'b');
  EXPECT_EQ(cudaEventQuery(second), cudaSuccess);

  // A stream keeps its order: what comes to the host can go back at once.
  ASSERT_EQ(cudaMemcpyAsync(pinned + 2, memory.data, 2, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(memory.data, pinned + 3, 1, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_THAT(memory.Read(), ElementsAre('b', 'b'));
  for (cudaEvent_t event : {first, second}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  for (cudaStream_t s : {stream, other}) EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  cudaGetLastError();
}

TEST(EmulatorRuntimeTest, CopiesOfRows) {
  Buffer<char> out(std::vector<char>(12, '.'));
  EXPECT_EQ(cudaMemcpy2DAsync(out.data + 1, 4, "abcdef", 2, 2, 3, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_THAT(out.Read(), ElementsAreArray(std::string(".ab..cd..ef.")));
}

TEST(EmulatorRuntimeTest, StreamsAndEvents) {
  cudaStream_t stream;
  cudaEvent_t event;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  Buffer<unsigned> out(std::vector<unsigned>(4, 0));
  EXPECT_EQ(Launch(stream, 1, 4, 0, CountIndices, out.data), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace edgewise::cuda
