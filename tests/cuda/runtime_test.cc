// Errors, memory and the staging of small arrays.
#include "kernels/cuda/device/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/device_array.h"
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
  for (const cudaError_t recoverable : {cudaErrorNoKernelImageForDevice, cudaErrorLaunchOutOfResources,
                                        cudaErrorNotReady, cudaErrorNotSupported, cudaErrorUnknown}) {
    EXPECT_FALSE(IsSticky(recoverable)) << recoverable;
  }
}

TEST(DeviceTest, ADeviceThatIsNotThereIsUnavailable) {
  EXPECT_EQ(Device::Open(-1).status().code(), absl::StatusCode::kUnavailable);
  const std::string seen = "CUDA device 99 is not there; this process sees 1, numbered from 0";
  EXPECT_EQ(Device::Open(99).status(), absl::UnavailableError(seen));
  setenv("CUDA_VISIBLE_DEVICES", "MIG-1", 1);
  EXPECT_EQ(Device::Open(99).status(), absl::UnavailableError(seen + ", with CUDA_VISIBLE_DEVICES=\"MIG-1\""));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(DeviceTest, ADriverOlderThanTheBuildIsNamedWithTheOneToInstall) {
  emulator::SetDriver(12080);
  const absl::Status status = Device::Open(0).status();
  emulator::SetDriver(13000);
  EXPECT_EQ(status, absl::UnavailableError("the NVIDIA driver is of CUDA 12.8, this build of CUDA 13.0; install driver "
                                           "580 or newer"));
}

TEST(DeviceTest, ADeviceWithoutMemoryPoolsIsRefusedByName) {
  emulator::SetPools(false);
  const absl::Status status = Device::Open(0).status();
  emulator::SetPools(true);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "CUDA device 0 (emulated) has no memory pools (cudaDevAttrMemoryPoolsSupported is 0)");
}

TEST(DeviceTest, MemoryComesBack) {
  const size_t allocations = emulator::LiveAllocations(), bytes = emulator::LiveBytes();
  {
    DeviceArray kept;
    const auto device = *Device::Open(0);
    EXPECT_FALSE(device->name().empty());
    void* memory = *device->Allocate(0);
    EXPECT_NE(memory, nullptr);
    device->Free(memory);
    device->Free(nullptr);
    kept = *DeviceArray::Create(*device, 100);
    DeviceArray moved = std::move(kept);
    kept = *DeviceArray::Create(*device, 50);
    moved = *DeviceArray::Create(*device, 100000);
  }
  EXPECT_EQ(emulator::LiveAllocations(), allocations);
  EXPECT_EQ(emulator::LiveBytes(), bytes) << "a closed device keeps nothing in its pool";
}

TEST(DeviceTest, FreedMemoryServesLaterAllocations) {
  const auto device = *Device::Open(0);
  { const auto reserved = *DeviceArray::Create(*device, 32 << 20); }
  ASSERT_TRUE(device->Synchronize().ok());
  const uint64_t taken = emulator::TakenSoFar().device_memory;
  std::vector<DeviceArray> parts;
  for (const int64_t bytes : {9 << 20, 1 << 20, 200000, 12 << 20, 7 << 20}) {
    parts.push_back(*DeviceArray::Create(*device, bytes));
  }
  EXPECT_EQ(emulator::TakenSoFar().device_memory, taken);
}

TEST(DeviceTest, TooLittleMemoryIsResourceExhaustedAndTheDeviceLivesOn) {
  const auto device = *Device::Open(0);
  const size_t before = emulator::LiveBytes();
  emulator::SetMemoryLimit(before + (8 << 20));
  DeviceArray first = *DeviceArray::Create(*device, 5 << 20), second = *DeviceArray::Create(*device, 1 << 20);
  const absl::Status status = device->Allocate(4 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            absl::StrCat("out of device memory: 4194304 bytes asked for on CUDA device 0; 2097152 of ",
                         before + (8 << 20), " are free"));
  EXPECT_FALSE(status.GetPayload(kDeviceLost).has_value());
  EXPECT_TRUE(device->Synchronize().ok());
  first = DeviceArray();
  EXPECT_TRUE(DeviceArray::Create(*device, 6 << 20).ok()) << "free memory of the pool makes room";

  Staging& staging = device->staging();
  const std::vector<double> large(1 << 20, 3.5);  // more than a block, and more than there is
  second = *DeviceArray::Create(*device, 6 << 20);
  EXPECT_EQ(staging.Add(std::span<const double>(large)), nullptr);
  EXPECT_EQ(staging.Add(std::span<const double>(large).first(1)), nullptr) << "one error for the batch";
  EXPECT_EQ(staging.Commit().code(), absl::StatusCode::kResourceExhausted);
  emulator::SetMemoryLimit(SIZE_MAX);
  EXPECT_NE(staging.Add(std::span<const double>(large)), nullptr);
  EXPECT_TRUE(staging.Commit().ok());
}

TEST(DeviceTest, ItsMemoryIsDividedAmongThoseWhoHoldIt) {
  emulator::SetMemoryLimit(100 << 20);
  const auto device = *Device::Open(0);
  const DeviceMemory before = *device->Memory();
  EXPECT_EQ(before.total, 100u << 20);
  EXPECT_EQ(before.weights, 0u);
  DeviceArray weights, moved;
  {
    const Device::Weights scope(*device);
    weights = *DeviceArray::Create(*device, 3 << 20);
  }
  { const auto call = *DeviceArray::Create(*device, 6 << 20); }
  const auto call = *DeviceArray::Create(*device, 1 << 20);
  ASSERT_TRUE(device->Synchronize().ok());
  DeviceMemory memory = *device->Memory();
  EXPECT_EQ(memory.weights, 3u << 20);
  EXPECT_EQ(memory.in_use - before.in_use, 4u << 20);
  EXPECT_EQ(memory.in_use + memory.kept - before.in_use - before.kept, before.free - memory.free);
  EXPECT_GE(memory.kept, 5u << 20) << "the pool keeps what calls give back";
  moved = std::move(weights);
  EXPECT_EQ(device->Memory()->weights, 3u << 20);
  moved = DeviceArray();
  weights = DeviceArray();
  memory = *device->Memory();
  EXPECT_EQ(memory.weights, 0u);
  EXPECT_EQ(memory.in_use - before.in_use, 1u << 20);
  emulator::SetMemoryLimit(SIZE_MAX);
}

TEST(DeviceTest, ThreadsMayFreeAtOnce) {
  const auto device = *Device::Open(0);
  const size_t before = emulator::LiveAllocations();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    std::vector<DeviceArray> arrays;
    for (int i = 0; i < 50; ++i) arrays.push_back(*DeviceArray::Create(*device, 1000 + 977 * i));
    threads.emplace_back([arrays = std::move(arrays)]() mutable { arrays.clear(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(emulator::LiveAllocations(), before);
}

// Most arrays are small, some larger than a slot, some larger than the ring. The emulator ends the process where the
// host writes to a slot while the copy of the slot is in flight, and holds back what comes to the host.
TEST(StagingTest, ArraysArriveWholeAndNoSlotInFlightIsOverwritten) {
  const size_t before = emulator::LiveAllocations();
  {
    const auto device = *Device::Open(0);
    Staging& staging = device->staging();
    std::mt19937_64 random(1);
    for (int batch = 0; batch < 40; ++batch) {
      std::vector<std::vector<int32_t>> arrays, back;
      std::vector<const int32_t*> places;
      for (int i = 0; i < 5; ++i) {
        const size_t size = i < 3 ? random() % 50 : random() % (batch % 10 == 0 ? 6000000 : 500000);
        std::vector<int32_t> values(size);
        std::iota(values.begin(), values.end(), static_cast<int32_t>(random()));
        places.push_back(staging.Add(std::span<const int32_t>(values)));
        EXPECT_EQ(places.back() == nullptr, values.empty());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(places.back()) % 16, 0u);
        arrays.push_back(std::move(values));
      }
      ASSERT_TRUE(staging.Commit().ok());
      if (batch % 3 != 0) continue;  // slots stay in flight
      std::vector<Staging::ToHost> copies;
      for (size_t i = 0; i < arrays.size(); ++i) {
        std::vector<int32_t>& to = back.emplace_back(arrays[i].size());
        copies.push_back({to.data(), places[i], static_cast<int64_t>(to.size() * sizeof(int32_t))});
      }
      ASSERT_TRUE(staging.Download(copies).ok());
      ASSERT_EQ(back, arrays);
    }
  }
  EXPECT_EQ(emulator::LiveAllocations(), before);
}

TEST(StagingTest, AnUploadTakesTheOrderOfTheStream) {
  const auto device = *Device::Open(0);
  Staging& staging = device->staging();
  const auto memory = *DeviceArray::Create(*device, 4);
  std::vector<char> host = {'a', 'b', 'c', 'd'};
  const char* added = staging.Add(std::span<const char>(host));
  host = {'1', '2', '3', '4'};
  ASSERT_TRUE(staging.Upload(host.data(), 4, memory.data()).ok());
  host = {'5', '6'};
  ASSERT_TRUE(staging.Upload(host.data(), 2, memory.as<char>() + 1).ok());
  ASSERT_TRUE(staging.Commit().ok());
  std::string first(4, ' '), second(4, ' ');
  const Staging::ToHost copies[] = {{first.data(), added, 4}, {second.data(), memory.data(), 4}};
  ASSERT_TRUE(staging.Download(copies).ok());
  EXPECT_EQ(first, "abcd");
  EXPECT_EQ(second, "1564");
}

TEST(StagingTest, ArraysOfOneBatchNeverShareMemory) {
  const auto device = *Device::Open(0);
  const std::vector<double> values(50000, 1.5);  // 400 KB
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (int i = 0; i < 40; ++i) {
    const auto place = reinterpret_cast<uintptr_t>(device->staging().Add(std::span<const double>(values)));
    ranges.emplace_back(place, place + values.size() * sizeof(double));
  }
  ASSERT_TRUE(device->staging().Commit().ok());
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0; i + 1 < ranges.size(); ++i) ASSERT_LE(ranges[i].second, ranges[i + 1].first);
}

TEST(StagingTest, BatchesTakeNothingNewFromTheDriver) {
  const auto device = *Device::Open(0);
  const std::vector<double> values(300000, 1.5);  // 2.4 MB
  emulator::Taken before = {};
  for (int batch = 0; batch < 4; ++batch) {
    if (batch == 1) before = emulator::TakenSoFar();
    for (int i = 0; i < 8; ++i) EXPECT_NE(device->staging().Add(std::span<const double>(values)), nullptr);
    ASSERT_TRUE(device->staging().Commit().ok());
  }
  const emulator::Taken after = emulator::TakenSoFar();
  EXPECT_EQ(after.pinned_memory, before.pinned_memory);
  EXPECT_EQ(after.device_memory, before.device_memory);
  EXPECT_EQ(after.events, before.events);
}

TEST(StagingTest, NothingToCopyIsFine) {
  const auto device = *Device::Open(0);
  EXPECT_TRUE(device->staging().Commit().ok());
  EXPECT_EQ(device->staging().Add(std::span<const float>()), nullptr);
  EXPECT_TRUE(device->staging().Commit().ok());
  EXPECT_TRUE(device->staging().Download({}).ok());
}

}  // namespace
}  // namespace edgewise::cuda
