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
