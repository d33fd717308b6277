// Errors, memory and the staging of small arrays.
#include "kernels/cuda/device/runtime.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

TEST(CudaStatusTest, SaysWhatFailedAndWhetherTheDeviceIsLost) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "x").ok());
  const absl::Status memory = CudaStatus(cudaErrorMemoryAllocation, "12 bytes");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory.message(), "out of device memory: 12 bytes");
  EXPECT_FALSE(memory.GetPayload(kDeviceLost).has_value());
  const absl::Status value = CudaStatus(cudaErrorInvalidValue, "copy");
  EXPECT_EQ(value.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(value.GetPayload(kDeviceLost).has_value());
  const absl::Status lost = CudaStatus(cudaErrorIllegalAddress, "synchronize");
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(lost.message().substr(0, 45), "cuda: synchronize: cudaErrorIllegalAddress: a");
  EXPECT_TRUE(lost.GetPayload(kDeviceLost).has_value());
}

TEST(DeviceTest, ADeviceThatIsNotThereIsUnavailable) {
  EXPECT_EQ(Device::Open(99).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Device::Open(-1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(DeviceTest, MemoryComesBack) {
  const size_t before = emulator::LiveAllocations();
  {
    const auto device = *Device::Open(0);
    EXPECT_FALSE(device->name().empty());
    void* memory = *device->Allocate(0);
    EXPECT_NE(memory, nullptr);
    device->Release(memory);
    device->Release(nullptr);
    auto first = *DeviceMemory::Create(device, 100);
    DeviceMemory second = std::move(first);
    second = *DeviceMemory::Create(device, 50);
    Scratch scratch(*device);
    void* small = *scratch.Get(100);
    EXPECT_EQ(*scratch.Get(40), small);
    ASSERT_TRUE(scratch.Get(100000).ok());
  }
  EXPECT_EQ(emulator::LiveAllocations(), before);
}

TEST(DeviceTest, NoMemoryIsResourceExhausted) {
  const auto device = *Device::Open(0);
  emulator::SetMemoryLimit(emulator::LiveBytes() + 1000);
  EXPECT_TRUE(DeviceMemory::Create(device, 500).ok());
  EXPECT_EQ(device->Allocate(2000).status().code(), absl::StatusCode::kResourceExhausted);
  Scratch scratch(*device);
  ASSERT_TRUE(scratch.Get(600).ok());
  EXPECT_EQ(scratch.Get(2000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scratch.Get(600).ok()) << "asking for too much loses nothing but what it held";
  Staging staging(*device);
  const std::vector<int32_t> values(10, 3);
  EXPECT_EQ(staging.Add(std::span<const int32_t>(values)), nullptr);
  EXPECT_EQ(staging.Commit().code(), absl::StatusCode::kResourceExhausted);
  emulator::SetMemoryLimit(SIZE_MAX);
  EXPECT_NE(staging.Add(std::span<const int32_t>(values)), nullptr);
  EXPECT_TRUE(staging.Commit().ok());
}

TEST(StagingTest, ArraysArriveWhole) {
  const size_t before = emulator::LiveAllocations();
  {
    const auto device = *Device::Open(0);
    Staging staging(*device);
    std::mt19937_64 random(1);
    for (int batch = 0; batch < 60; ++batch) {
      std::vector<std::vector<int32_t>> arrays;
      std::vector<const int32_t*> places;
      for (int i = 0; i < 5; ++i) {
        // Most are small, some fill a chunk of 1 MB, some need one of their own.
        const size_t size = i < 3 ? random() % 50 : random() % (batch % 10 == 0 ? 900000 : 150000);
        std::vector<int32_t> values(size);
        std::iota(values.begin(), values.end(), static_cast<int32_t>(random()));
        places.push_back(staging.Add(std::span<const int32_t>(values)));
        EXPECT_EQ(places.back() == nullptr, values.empty());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(places.back()) % 16, 0u);
        arrays.push_back(std::move(values));
      }
      ASSERT_TRUE(staging.Commit().ok());
      for (size_t i = 0; i < arrays.size(); ++i) {
        std::vector<int32_t> back(arrays[i].size());
        cudaMemcpy(back.data(), places[i], back.size() * sizeof(int32_t), cudaMemcpyDeviceToHost);
        ASSERT_EQ(back, arrays[i]);
      }
    }
    EXPECT_LE(emulator::LiveBytes(), size_t{20} << 20) << "chunks are used again";
  }
  EXPECT_EQ(emulator::LiveAllocations(), before);
}

TEST(StagingTest, ArraysOfOneBatchNeverShareMemory) {
  const auto device = *Device::Open(0);
  Staging staging(*device);
  const std::vector<double> values(50000, 1.5);  // 400 KB
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (int i = 0; i < 40; ++i) {
    const auto place = reinterpret_cast<uintptr_t>(staging.Add(std::span<const double>(values)));
    ranges.emplace_back(place, place + values.size() * sizeof(double));
  }
  ASSERT_TRUE(staging.Commit().ok());
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0; i + 1 < ranges.size(); ++i) ASSERT_LE(ranges[i].second, ranges[i + 1].first);
}

// What one batch fills cannot be used again before it is committed.
TEST(StagingTest, WhatIsPreparedIsFoundAndIsEnough) {
  const auto device = *Device::Open(0);
  Staging staging(*device);
  ASSERT_TRUE(staging.Prepare().ok());
  const emulator::Taken before = emulator::TakenSoFar();
  ASSERT_TRUE(staging.Prepare().ok());
  const std::vector<double> values(500000, 1.5);  // 4 MB
  for (int batch = 0; batch < 3; ++batch) {
    for (int i = 0; i < 6; ++i) EXPECT_NE(staging.Add(std::span<const double>(values)), nullptr);
    ASSERT_TRUE(staging.Commit().ok());
  }
  const emulator::Taken after = emulator::TakenSoFar();
  EXPECT_EQ(after.pinned_memory, before.pinned_memory);
  EXPECT_EQ(after.device_memory, before.device_memory);
  EXPECT_EQ(after.events, before.events);

  // A larger chunk is kept for arrays as large, and gives way to one that is larger still.
  const std::vector<double> large(1000000, 2.5), larger(2000000, 3.5);
  const size_t held = emulator::LiveBytes();
  for (const std::vector<double>* array : {&large, &large, &large, &larger, &larger, &larger, &large}) {
    EXPECT_NE(staging.Add(std::span<const double>(*array)), nullptr);
    ASSERT_TRUE(staging.Commit().ok());
  }
  EXPECT_EQ(emulator::TakenSoFar().pinned_memory, before.pinned_memory + 2);
  device->memory().Trim();
  EXPECT_LE(emulator::LiveBytes() - held, size_t{16} << 20);
}

TEST(StagingTest, NothingToCopyIsFine) {
  const auto device = *Device::Open(0);
  Staging staging(*device);
  EXPECT_TRUE(staging.Commit().ok());
  EXPECT_EQ(staging.Add(std::span<const float>()), nullptr);
  EXPECT_TRUE(staging.Commit().ok());
}

}  // namespace
}  // namespace edgewise::cuda
