// The words of device memory behind drop flags: set once, cleared before they are used again.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/drop_flags.h"
#include "kernels/cuda/runtime.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"

namespace edgewise::cuda {
namespace {

TEST(DropWordsTest, WordsAreUsedAgainCleared) {
  const auto device = *Device::Open(0);
  const auto flags = *DropFlags::Create(device, 2);
  const auto value = [](const int32_t* word) {
    int32_t value = -1;
    EXPECT_EQ(cudaMemcpy(&value, word, sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  };
  const auto kept = flags->Make();
  auto flag = flags->Make();
  const int32_t* word = DropFlags::WordOf(flag.get());
  ASSERT_NE(word, nullptr);
  EXPECT_NE(word, DropFlags::WordOf(kept.get()));
  EXPECT_EQ(value(word), 0);
  for (int round = 0; round < 3; ++round) {
    flag->Raise();
    EXPECT_EQ(value(word), 1);
    uint64_t calls = emulator::calls();
    flag->Raise();
    EXPECT_EQ(emulator::calls(), calls) << "told once";
    flag = nullptr;
    calls = emulator::calls();
    flag = flags->Make();
    EXPECT_EQ(emulator::calls() - calls, 2u) << "of the device, and for the stream that clears the word";
    EXPECT_EQ(DropFlags::WordOf(flag.get()), word);
    EXPECT_FALSE(flag->raised());
    EXPECT_EQ(value(word), 0);
  }
  EXPECT_EQ(value(DropFlags::WordOf(kept.get())), 0);
}

TEST(DropWordsTest, MoreFlagsThanWords) {
  const auto device = *Device::Open(0);
  const auto flags = *DropFlags::Create(device, 1);
  auto first = flags->Make();
  const int32_t* word = DropFlags::WordOf(first.get());
  auto without = flags->Make();
  EXPECT_EQ(DropFlags::WordOf(without.get()), nullptr);
  const uint64_t calls = emulator::calls();
  without->Raise();
  EXPECT_TRUE(without->raised());
  EXPECT_FALSE(first->raised());
  without = nullptr;
  EXPECT_EQ(emulator::calls(), calls);
  first = nullptr;
  const auto next = flags->Make();
  EXPECT_EQ(DropFlags::WordOf(next.get()), word);
}

TEST(DropWordsTest, OneThatIsNeverRaisedCostsNoCall) {
  const auto backend = testing::MakeLinked();
  const uint64_t calls = emulator::calls();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(backend->MakeDropFlag().ok());
  EXPECT_EQ(emulator::calls(), calls);
}

TEST(DropWordsTest, ALostDeviceIsNotTold) {
  const auto device = *Device::Open(0);
  const auto flags = *DropFlags::Create(device, 1);
  auto flag = flags->Make();
  const auto backend = testing::MakeLinked();
  const Buffer row = *backend->Allocate(1);
  emulator::FailAfter(0);
  const Matrix x(row.data(), 1, 1);
  EXPECT_FALSE(backend->LayerNorm(x, row.data(), row.data(), 1.0f, x).ok());
  flag->Raise();
  EXPECT_TRUE(flag->raised());
  flag = nullptr;
  emulator::FailAfter(-1);
  EXPECT_EQ(DropFlags::WordOf(flags->Make().get()), nullptr) << "the word may be set";
}

TEST(DropWordsTest, NoMemoryIsAnErrorOfTheStart) {
  const size_t live = emulator::LiveAllocations();
  for (const size_t bytes : {0, 65535}) {
    const auto device = *Device::Open(0);
    emulator::SetMemoryLimit(emulator::LiveBytes() + bytes);
    EXPECT_EQ(DropFlags::Create(device, 16384).status().code(), absl::StatusCode::kResourceExhausted);
    emulator::SetMemoryLimit(SIZE_MAX);
  }
  EXPECT_EQ(emulator::LiveAllocations(), live);
}

}  // namespace
}  // namespace edgewise::cuda
