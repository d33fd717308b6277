// Device memory that is used again: sizes, cutting and joining, and what happens when the driver has no more.
#include "kernels/cuda/device/memory_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cuda/device/runtime.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

void* Take(MemoryCache& cache, int64_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cache.Take(bytes, &memory), cudaSuccess);
  EXPECT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  return memory;
}

TEST(MemoryCacheTest, TheDriverIsAskedOnce) {
  const size_t before = emulator::LiveAllocations();
  {
    MemoryCache cache;
    for (int64_t bytes : {0, 1, 300, 5000, 70000, 3000000}) {
      void* first = Take(cache, bytes);
      cache.Give(first);
      const int64_t calls = cache.use().driver_calls;
      EXPECT_EQ(Take(cache, bytes), first) << bytes;
      EXPECT_EQ(cache.use().driver_calls, calls);
    }
    cache.Give(nullptr);
    EXPECT_GT(cache.use().taken, 3075301);
  }
  EXPECT_EQ(emulator::LiveAllocations(), before);
}

TEST(MemoryCacheTest, LittleIsWasted) {
  MemoryCache cache;
  for (int64_t bytes = 1; bytes < 4 << 20; bytes += 1 + bytes / 7) {
    const int64_t before = cache.use().taken;
    Take(cache, bytes);
    const int64_t taken = cache.use().taken - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LE(taken, bytes + 64 + 256) << bytes;
  }
}

TEST(MemoryCacheTest, AReserveIsCutAndJoinedAgain) {
  MemoryCache cache;
  constexpr int64_t kReserve = 32 << 20;
  cache.Give(Take(cache, kReserve));
  const int64_t held = cache.use().held;
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> parts;
    for (const int64_t bytes : {9 << 20, 1 << 20, 200000, 12 << 20, 7 << 20}) parts.push_back(Take(cache, bytes));
    EXPECT_EQ(cache.use().held, held);
    std::shuffle(parts.begin(), parts.end(), std::mt19937(round));
    for (void* part : parts) cache.Give(part);
    void* whole = Take(cache, kReserve);
    EXPECT_EQ(cache.use().driver_calls, 1) << "free neighbours are one block";
    cache.Give(whole);
  }
  void* part = Take(cache, 1 << 20);
  cache.Give(Take(cache, 100));
  EXPECT_EQ(cache.use().driver_calls, 1) << "small blocks are cut off too";
  cache.Trim();
  EXPECT_EQ(cache.use().held, held) << "one in use keeps its whole allocation";
  cache.Give(part);
  cache.Trim();
  EXPECT_EQ(cache.use().held, 0);
}

TEST(MemoryCacheTest, ATrimKeepsWhatWasReserved) {
  MemoryCache cache;
  std::vector<void*> taken;
  for (const int64_t bytes : {1 << 20, 3 << 20, 4 << 20}) taken.push_back(Take(cache, bytes));
  const int64_t held = cache.use().held;
  for (void* memory : taken) cache.Give(memory);
  cache.Trim(5 << 20);
  EXPECT_EQ(cache.use().held, 0) << "nothing is as large";
  cache.Give(Take(cache, 3 << 20));
  cache.Trim(3 << 20);
  EXPECT_GE(cache.use().held, 3 << 20);
  EXPECT_LT(cache.use().held, held);
  const int64_t calls = cache.use().driver_calls;
  cache.Give(Take(cache, 3 << 20));
  EXPECT_EQ(cache.use().driver_calls, calls);
}

TEST(MemoryCacheTest, AReserveIsInPlaceOfTheOneBefore) {
  const auto device = *Device::Open(0);
  constexpr Workspace kUse = Workspace::kBatch;
  const size_t before = emulator::LiveBytes();
  ASSERT_TRUE(device->Reserve(kUse, 4 << 20).ok());
  ASSERT_TRUE(device->Reserve(kUse, 6 << 20).ok());
  EXPECT_LT(emulator::LiveBytes() - before, size_t{7} << 20) << "not both";
  ASSERT_TRUE(device->Reserve(Workspace::kCaches, 5 << 20).ok());
  EXPECT_GT(emulator::LiveBytes() - before, size_t{11} << 20) << "workspaces are apart";
  const uint64_t asked = emulator::TakenSoFar().device_memory;
  ASSERT_TRUE(device->Reserve(kUse, 5 << 20).ok());
  MemoryCache& cache = device->memory(kUse);
  void* whole = *device->Allocate(6 << 20, cache);
  EXPECT_EQ(emulator::TakenSoFar().device_memory, asked);
  cache.Give(whole);

  // Where there is no room for more, what there was stays, also when others need memory.
  emulator::SetMemoryLimit(emulator::LiveBytes() + (1 << 20));
  EXPECT_EQ(device->Reserve(kUse, 8 << 20).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device->Allocate(2 << 20).status().code(), absl::StatusCode::kResourceExhausted);
  emulator::SetMemoryLimit(emulator::LiveBytes());
  whole = *device->Allocate(6 << 20, cache);
  cache.Give(whole);
  emulator::SetMemoryLimit(SIZE_MAX);
}

TEST(MemoryCacheTest, BlocksInUseNeverOverlap) {
  const size_t before = emulator::LiveBytes();
  {
    MemoryCache cache;
    std::mt19937_64 random(3);
    struct Held {
      unsigned char* data;
      int64_t bytes;
      unsigned char mark;
    };
    std::vector<Held> held;
    const auto give = [&](size_t i) {
      for (const int64_t at : {int64_t{0}, held[i].bytes / 2, held[i].bytes - 1}) {
        ASSERT_EQ(held[i].data[at], held[i].mark);
      }
      cache.Give(held[i].data);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int step = 0; step < 3000; ++step) {
      if (held.size() > 40 || (!held.empty() && random() % 2 == 0)) {
        give(random() % held.size());
      } else {
        const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 4 == 0 ? 600000 : 3000));
        Held block = {static_cast<unsigned char*>(Take(cache, bytes)), bytes, static_cast<unsigned char>(random())};
        std::memset(block.data, block.mark, bytes);
        held.push_back(block);
      }
      if (step % 500 == 499) cache.Trim();
    }
    while (!held.empty()) give(0);
    EXPECT_EQ(cache.use().taken, 0);
    EXPECT_GT(cache.use().most_taken, 0);
    cache.ResetMost();
    EXPECT_EQ(cache.use().most_taken, 0);
  }
  EXPECT_EQ(emulator::LiveBytes(), before);
}

TEST(MemoryCacheTest, ThreadsMayGiveAtOnce) {
  const auto device = *Device::Open(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto memory = DeviceMemory::Create(device, 1000 + 977 * i);
        EXPECT_TRUE(memory.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device->memory().use().taken, 0);
}

TEST(MemoryCacheTest, WhatIsFreeMakesRoomForWhatIsNot) {
  const auto device = *Device::Open(0);
  emulator::SetMemoryLimit(emulator::LiveBytes() + (3 << 20));
  void* kept = *device->Allocate(1 << 20);
  device->Release(*device->Allocate(500000));
  device->Release(*device->Allocate(200000));
  EXPECT_TRUE(device->Allocate(1800000).ok()) << "what was free went back to the driver";
  EXPECT_EQ(device->Allocate(1800000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->Synchronize().ok()) << "running out is not the end";
  device->Release(kept);
  const int64_t calls = device->memory().use().driver_calls;
  EXPECT_TRUE(device->Allocate(1 << 20).ok());
  EXPECT_EQ(device->memory().use().driver_calls, calls);
  emulator::SetMemoryLimit(SIZE_MAX);
}

TEST(MemoryCacheDeathTest, AWriteBehindABlockIsReported) {
  MemoryCache cache;
  const auto overrun = [&] {
    auto* data = static_cast<unsigned char*>(Take(cache, 1000));
    data[1000] = 0;
    cache.Give(data);
  };
  EXPECT_DEATH(overrun(), "byte 1000 of a block of 1000 bytes was written|use-after-poison");
  void* data = Take(cache, 1000);
  std::vector<char> host(2000);
  EXPECT_DEATH(cudaMemcpy(data, host.data(), 1001, cudaMemcpyHostToDevice),
               "1001 bytes at byte 0 of an allocation of 1000");
  cache.Give(data);
}

}  // namespace
}  // namespace edgewise::cuda
