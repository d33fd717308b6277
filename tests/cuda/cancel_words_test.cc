// The words of device memory behind cancel flags: set once, cleared before they are used again.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/device/cancel_flags.h"
#include "kernels/cuda/device/runtime.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"

namespace edgewise::cuda {
namespace {

TEST(CancelWordsTest, WordsAreUsedAgainCleared) {
  const auto device = *Device::Open(0);
  const auto flags = *CancelFlags::Create(device, 2);
  const auto value = [](const int32_t* word) {
    int32_t value = -1;
    EXPECT_EQ(cudaMemcpy(&value, word, sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  };
  const auto kept = flags->Make();
  auto flag = flags->Make();
  const int32_t* word = CancelFlags::WordOf(flag.get());
  ASSERT_NE(word, nullptr);
  EXPECT_NE(word, CancelFlags::WordOf(kept.get()));
  EXPECT_EQ(value(word), 0);
  for (int round = 0; round < 3; ++round) {
    flag->Cancel();
    EXPECT_EQ(value(word), 1);
    uint64_t calls = emulator::calls();
    flag->Cancel();
    EXPECT_EQ(emulator::calls(), calls) << "told once";
    flag = nullptr;
    calls = emulator::calls();
    flag = flags->Make();
    EXPECT_EQ(emulator::calls() - calls, 2u) << "of the device, and for the stream that clears the word";
    EXPECT_EQ(CancelFlags::WordOf(flag.get()), word);
    EXPECT_FALSE(flag->cancelled());
    EXPECT_EQ(value(word), 0);
  }
  EXPECT_EQ(value(CancelFlags::WordOf(kept.get())), 0);
}

TEST(CancelWordsTest, MoreFlagsThanWords) {
  const auto device = *Device::Open(0);
  const auto flags = *CancelFlags::Create(device, 1);
  auto first = flags->Make();
  const int32_t* word = CancelFlags::WordOf(first.get());
  auto without = flags->Make();
  EXPECT_EQ(CancelFlags::WordOf(without.get()), nullptr);
  const uint64_t calls = emulator::calls();
  without->Cancel();
  EXPECT_TRUE(without->cancelled());
  EXPECT_FALSE(first->cancelled());
  without = nullptr;
  EXPECT_EQ(emulator::calls(), calls);
  first = nullptr;
  const auto next = flags->Make();
  EXPECT_EQ(CancelFlags::WordOf(next.get()), word);
}

TEST(CancelWordsTest, OneThatIsNeverRaisedCostsNoCall) {
  const auto backend = edgewise::testing::MakeLinked();
  const uint64_t calls = emulator::calls();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(backend->MakeCancelFlag().ok());
  EXPECT_EQ(emulator::calls(), calls);
}

TEST(CancelWordsTest, ALostDeviceIsNotTold) {
  const auto device = *Device::Open(0);
  const auto flags = *CancelFlags::Create(device, 1);
  auto flag = flags->Make();
  const auto backend = edgewise::testing::MakeLinked();
  const Buffer row = *backend->Allocate(1);
  emulator::FailAfter(0);
  const Matrix x(row.data(), 1, 1);
  EXPECT_FALSE(backend->LayerNorm(x, row.data(), row.data(), 1.0f, x).ok());
  flag->Cancel();
  EXPECT_TRUE(flag->cancelled());
  flag = nullptr;
  emulator::FailAfter(-1);
  EXPECT_EQ(CancelFlags::WordOf(flags->Make().get()), nullptr) << "the word may be set";
}

TEST(CancelWordsTest, NoMemoryIsAnErrorOfTheStart) {
  const size_t live = emulator::LiveAllocations();
  {
    const auto device = *Device::Open(0);
    emulator::SetMemoryLimit(emulator::LiveBytes());
    EXPECT_EQ(CancelFlags::Create(device, 1 << 20).status().code(), absl::StatusCode::kResourceExhausted);
    emulator::SetMemoryLimit(SIZE_MAX);
  }
  EXPECT_EQ(emulator::LiveAllocations(), live);
}

}  // namespace
}  // namespace edgewise::cuda
