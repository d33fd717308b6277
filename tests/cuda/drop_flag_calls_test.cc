// Flags that are raised around the calls of a backend: by other threads, before and while graphs run, without a word.
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/drop_flags.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/graph_layers.h"
#include "tests/kernels/drop_case.h"

namespace edgewise {
namespace {

using testing::ExpectSame;
using testing::Got;
using testing::kDropped;
using testing::Layers;
using testing::Make;
using testing::Outcome;
using testing::RunOnDevice;
using testing::SameBytes;
using testing::ThreeSequences;
using testing::Untouched;

DrawnRows Drawn(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

TEST(DropFlagCallsTest, OneThatKernelsDoNotSeeChangesNothing) {
  const auto backend = Make(nullptr);
  std::vector<std::unique_ptr<DropFlag>> flags;
  do {
    flags.push_back(*backend->MakeDropFlag());
  } while (cuda::DropFlags::WordOf(flags.back().get()) != nullptr);
  EXPECT_EQ(flags.size(), 16385u);
  const auto attention_case = ThreeSequences({"drawn", [](int32_t) { return Drawn(5); }}, 70);
  const Outcome want = RunOnDevice(*backend, *attention_case);
  DropFlag plain;  // as the CPU's
  for (DropFlag* flag : {flags.back().get(), &plain}) {
    flag->Raise();
    attention_case->problems[kDropped].drop = flag;
    EXPECT_TRUE(SameBytes(RunOnDevice(*backend, *attention_case).out, want.out));
  }
}

TEST(DropFlagCallsTest, RaisedByAnotherThreadWhileCallsRun) {
  const auto backend = Make(nullptr);
  const auto attention_case = ThreeSequences({"drawn", [](int32_t) { return Drawn(5); }}, 70);
  const Outcome want = RunOnDevice(*backend, *attention_case);
  size_t untouched = 0;
  for (int round = 0; round < 30; ++round) {
    const auto flag = *backend->MakeDropFlag();
    attention_case->problems[kDropped].drop = flag.get();
    std::promise<void> begun;
    // In the kernel, or after it where the thread is slow.
    emulator::AtStep(1000, [&] { begun.set_value(); });
    std::thread other([&] {
      begun.get_future().wait();
      flag->Raise();
    });
    const Outcome got = RunOnDevice(*backend, *attention_case);
    other.join();
    untouched += Untouched(*attention_case, got, want);
    ExpectSameMates(*attention_case, got, want);
  }
  EXPECT_GT(untouched, 0u) << "no call was met while it ran";
}

// The first sequence of a layer that is started as a graph, with a flag for each layer.
TEST(DropFlagCallsTest, RaisedAroundGraphs) {
  const auto plain = Make(nullptr), graphs = Make("1");
  enum { kNever, kBefore, kWhileCaptured, kWhileItRuns };
  const std::vector<int> when = {kNever, kBefore, kWhileCaptured, kNever, kWhileItRuns, kBefore, kNever};
  Layers want_layers(*plain), layers(*graphs);
  std::vector<std::unique_ptr<DropFlag>> flags;
  for (uint32_t l = 0; l < when.size(); ++l) {
    testing::Spec spec = {.pattern = Drawn(l), .seed = l};
    ASSERT_TRUE(want_layers.Run(spec).ok());
    DropFlag& flag = *flags.emplace_back(*graphs->MakeDropFlag());
    spec.drop = &flag;
    const auto raise = [&] { std::thread([&] { flag.Raise(); }).join(); };
    if (when[l] == kBefore) raise();
    if (when[l] == kWhileCaptured) spec.before_end = raise;
    if (when[l] == kWhileItRuns) emulator::AtStep(1000, [&] { flag.Raise(); });
    ASSERT_TRUE(layers.Run(spec).ok());
    EXPECT_EQ(flag.raised(), when[l] != kNever);
  }
  const std::vector<Got> want = want_layers.Finish(), got = layers.Finish();
  for (size_t l = 0; l < when.size(); ++l) {
    SCOPED_TRACE(l);
    if (when[l] == kNever) {
      ExpectSame({got[l]}, {want[l]});
      continue;
    }
    // Rows come back in reverse.
    const std::vector<float>&a = got[l].out, &b = want[l].out;
    const size_t mate = testing::Spec().lengths[1] * testing::kWidth;
    EXPECT_TRUE(SameBytes(std::span(a).first(mate), std::span(b).first(mate)));
    EXPECT_FALSE(SameBytes(a, b));
    for (size_t h = 0; h < 2; ++h) EXPECT_EQ(got[l].reports[1].heads[h].edges, want[l].reports[1].heads[h].edges);
  }
}

}  // namespace
}  // namespace edgewise
