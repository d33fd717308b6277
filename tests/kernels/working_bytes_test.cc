// The memory of passes is counted, as long as it is held.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_backend.h"

namespace edgewise {
namespace {

TEST(WorkingBytesTest, CountsBuffersThatAreHeldOrKept) {
  const auto backend = CreateCpuBackend({.num_threads = 1});
  ASSERT_TRUE(backend.ok());
  const auto bytes = [&] { return (*backend)->WorkingBytes(); };
  const uint64_t before = bytes();
  constexpr int64_t kFloats = 1 << 20;
  {
    const auto first = (*backend)->Allocate(kFloats), second = (*backend)->Allocate(kFloats);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(bytes() - before, 2 * kFloats * sizeof(float));
  }
  EXPECT_EQ(bytes(), before);
  ASSERT_TRUE((*backend)->Reserve(kFloats, 0).ok());
  {
    const auto first = (*backend)->Allocate(kFloats), second = (*backend)->Allocate(kFloats);
    ASSERT_TRUE(first.ok() && second.ok());
  }
  EXPECT_EQ(bytes() - before, kFloats * sizeof(float)) << "one is kept for the next pass";
  { ASSERT_TRUE((*backend)->Allocate(kFloats / 2).ok()); }
  EXPECT_EQ(bytes() - before, kFloats * sizeof(float) / 2) << "other sizes are wanted now";
}

class ReservedBytesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;

  ReservedBytesTest() : backend_(*CreateCpuBackend({.num_threads = 1})) {
    EXPECT_TRUE(backend_->Reserve(int64_t{1} << 30, 0).ok());
    before_ = backend_->WorkingBytes();
  }
  Buffer Take(uint64_t mib) { return *backend_->Allocate(static_cast<int64_t>(mib * kMiB / sizeof(float))); }
  uint64_t Mib() const { return (backend_->WorkingBytes() - before_) / kMiB; }

  const std::unique_ptr<Backend> backend_;
  uint64_t before_ = 0;
};

TEST_F(ReservedBytesTest, ManySizesInTurnLeaveNoMoreThanTheLargest) {
  for (const uint64_t mib : {3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32, 40, 48, 5, 20}) Take(mib);
  EXPECT_LE(Mib(), 48u);
  EXPECT_GT(Mib(), 20u) << "what was used last is kept";
}

TEST_F(ReservedBytesTest, WhatWasUsedLongestAgoGoesBackFirst) {
  { const Buffer first = Take(20), second = Take(24); }
  Take(24);
  Take(8);  // in the place of 20
  EXPECT_EQ(Mib(), 32u);
  const Buffer again = Take(24);
  EXPECT_EQ(Mib(), 32u) << "found";
}

TEST_F(ReservedBytesTest, CallsLikeTheLastTakeNothing) {
  for (int call = 0; call < 3; ++call) {
    const Buffer first = Take(24), second = Take(32), third = Take(24);
    EXPECT_EQ(Mib(), 80u);
  }
  EXPECT_EQ(Mib(), 80u);
}

TEST_F(ReservedBytesTest, WhatIsNotUsedForTwoPeriodsGoesBack) {
  { const Buffer first = Take(40), second = Take(48); }
  backend_->ReleaseUnused();
  EXPECT_EQ(Mib(), 88u) << "used in the period that has just ended";
  Take(40);
  backend_->ReleaseUnused();
  EXPECT_EQ(Mib(), 40u);
  backend_->ReleaseUnused();
  EXPECT_EQ(Mib(), 0u) << "too large for what is always kept";
  Take(10);
  for (int period = 0; period < 3; ++period) backend_->ReleaseUnused();
  EXPECT_EQ(Mib(), 10u);
}

TEST(WorkingBytesTest, EndWithTheBackend) {
  uint64_t before = 0;
  {
    const auto other = CreateCpuBackend({.num_threads = 1});
    before = (*other)->WorkingBytes();
    const auto backend = CreateCpuBackend({.num_threads = 1});
    ASSERT_TRUE((*backend)->Reserve(1024, 0).ok());
    { ASSERT_TRUE((*backend)->Allocate(1024).ok()); }
    EXPECT_GT((*other)->WorkingBytes(), before);
  }
  EXPECT_EQ((*CreateCpuBackend({.num_threads = 1}))->WorkingBytes(), before);
}

}  // namespace
}  // namespace edgewise
