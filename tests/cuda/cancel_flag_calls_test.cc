// Flags that are raised around the calls of a backend: by another thread, and where kernels have no word to see.
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/device/cancel_flags.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/cancel_case.h"

namespace edgewise {
namespace {

using testing::kCancelled;
using testing::MakeLinked;
using testing::Outcome;
using testing::RunOnDevice;
using testing::SameBytes;
using testing::ThreeSequences;
using testing::Untouched;

DrawnRows Drawn(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

TEST(CancelFlagCallsTest, OneThatKernelsDoNotSeeChangesNothing) {
  const auto backend = MakeLinked();
  std::vector<std::unique_ptr<CancelFlag>> flags;
  do {
    flags.push_back(*backend->MakeCancelFlag());
  } while (cuda::CancelFlags::WordOf(flags.back().get()) != nullptr);
  EXPECT_EQ(flags.size(), 16385u);
  const auto attention_case = ThreeSequences({"drawn", [](int32_t) { return Drawn(5); }}, 70);
  const Outcome want = RunOnDevice(*backend, *attention_case);
  CancelFlag plain;  // as the CPU's
  for (CancelFlag* flag : {flags.back().get(), &plain}) {
    flag->Cancel();
    attention_case->problems[kCancelled].cancel = flag;
    EXPECT_TRUE(SameBytes(RunOnDevice(*backend, *attention_case).out, want.out));
  }
}

TEST(CancelFlagCallsTest, RaisedByAnotherThreadWhileCallsRun) {
  const auto backend = MakeLinked();
  const auto attention_case = ThreeSequences({"drawn", [](int32_t) { return Drawn(5); }}, 70);
  const Outcome want = RunOnDevice(*backend, *attention_case);
  size_t untouched = 0;
  for (int round = 0; round < 30; ++round) {
    const auto flag = *backend->MakeCancelFlag();
    attention_case->problems[kCancelled].cancel = flag.get();
    std::promise<void> begun;
    // In the kernel, or after it where the thread is slow.
    emulator::AtStep(1000, [&] { begun.set_value(); });
    std::thread other([&] {
      begun.get_future().wait();
      flag->Cancel();
    });
    const Outcome got = RunOnDevice(*backend, *attention_case);
    other.join();
    untouched += Untouched(*attention_case, got, want);
    ExpectSameMates(*attention_case, got, want);
  }
  EXPECT_GT(untouched, 0u) << "no call was met while it ran";
}

}  // namespace
}  // namespace edgewise
