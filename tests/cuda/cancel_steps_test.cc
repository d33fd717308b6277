// A problem whose flag is raised while kernels run ends early, step by step, and nothing else changes.
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/device/cancel_flags.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/cancel_case.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::DrawnFrom;
using testing::kCancelled;
using testing::MakeLinked;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::RunOn;
using testing::SameBytes;
using testing::Shape;
using testing::ThreeSequences;
using testing::Untouched;

std::vector<Pattern> AllPatterns() {
  return {{"drawn", [](int32_t) { return DrawnFrom(3); }},
          {"multi",
           [](int32_t) {
             return DrawnRows{.law = Law::kPoissonMulti, .key = {4, 0, 0, 0}};
           }},
          {"dense", [](int32_t) { return DrawnRows{.exploration = 1.0f}; }},
          {"pairs", [](int32_t) { return AllPairs{}; }},
          {"causal", [](int32_t) { return AllPairs{true}; }},
          {"windows", [](int32_t n) { return testing::Windows(n, 3, false); }}};
}
const Pattern kDrawn = {"drawn", [](int32_t) { return DrawnFrom(5); }};

class CancelStepsTest : public ::testing::TestWithParam<emulator::Order> {
 protected:
  void SetUp() override { emulator::SetOrder(GetParam()); }
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CancelStepsTest,
                         ::testing::Values(emulator::kForward, emulator::kBackward, emulator::Shuffled(7)));

TEST_P(CancelStepsTest, RaisedWhileKernelsRun) {
  const auto backend = MakeLinked();
  for (const Pattern& pattern : AllPatterns()) {
    SCOPED_TRACE(pattern.name);
    const auto attention_case = ThreeSequences(pattern, 70);
    const uint64_t before = emulator::Steps();
    const Outcome want = RunOn(*backend, *attention_case);
    const uint64_t steps = emulator::Steps() - before;
    // The first ones while the threads of a block look at the flag.
    std::vector<uint64_t> when = {1, 2, 37, 200, 255, 256, 257};
    for (uint64_t eighth = 1; eighth < 8; ++eighth) when.push_back(steps * eighth / 8);
    size_t untouched = 0;
    for (const uint64_t step : when) {
      const auto flag = *backend->MakeCancelFlag();
      attention_case->problems[kCancelled].cancel = flag.get();
      emulator::AtStep(step, [&] { flag->Cancel(); });
      const Outcome got = RunOn(*backend, *attention_case);
      EXPECT_TRUE(flag->cancelled());
      untouched += Untouched(*attention_case, got, want);
      ExpectSameMates(*attention_case, got, want);
    }
    const size_t all = when.size() * RowsOf(*attention_case, want, kCancelled).size();
    EXPECT_GT(untouched, all / 4);
    EXPECT_LT(untouched, all) << "some items were done before";
  }
}

// Rows that are taken in several steps.
TEST_P(CancelStepsTest, ALongRowEndsBetweenItsSteps) {
  const auto backend = MakeLinked();
  Shape shape;
  shape.lengths = {100, 30000};
  shape.heads = 1;
  Case attention_case(shape);
  attention_case.AddProblems(AllPairs{});
  std::vector<HeadEdges> edges[2];
  for (size_t p = 0; p < 2; ++p) {
    AttentionProblem& problem = attention_case.problems[p];
    problem.first_query = problem.tokens - 3;
    HeadEdges& head = edges[p].emplace_back();
    head.row_offsets = {0};
    for (int32_t query = 0; query < 3; ++query) {
      for (int32_t key = query; key < problem.tokens; key += 25) head.keys.push_back(key);
      head.row_offsets.push_back(static_cast<int64_t>(head.keys.size()));
    }
    problem.out_row = static_cast<int64_t>(3 * p);
    problem.pattern = ExplicitEdges{&edges[p]};
  }
  attention_case.out_rows = 6;
  const uint64_t before = emulator::Steps();
  const Outcome want = RunOn(*backend, attention_case);
  const uint64_t steps = emulator::Steps() - before;
  std::vector<size_t> untouched;
  for (const uint64_t part : {2, 5, 8}) {
    const auto flag = *backend->MakeCancelFlag();
    attention_case.problems[kCancelled].cancel = flag.get();
    emulator::AtStep(part == 8 ? steps - 1 : steps * part / 10, [&] { flag->Cancel(); });
    const Outcome got = RunOn(*backend, attention_case);
    untouched.push_back(Untouched(attention_case, got, want));
    ExpectSameMates(attention_case, got, want);
  }
  const size_t all = RowsOf(attention_case, want, kCancelled).size();
  EXPECT_EQ(untouched[0], all);
  EXPECT_GT(untouched[1], 0u) << "between the steps of a row";
  EXPECT_EQ(untouched[2], 0u) << "after the last";
}

TEST(CancelFlagCallsTest, OneThatKernelsDoNotSeeChangesNothing) {
  const auto backend = MakeLinked();
  std::vector<std::unique_ptr<CancelFlag>> flags;
  do {
    flags.push_back(*backend->MakeCancelFlag());
  } while (cuda::CancelFlags::WordOf(flags.back().get()) != nullptr);
  EXPECT_EQ(flags.size(), 16385u);  // one more than there are words
  const auto attention_case = ThreeSequences(kDrawn, 70);
  const Outcome want = RunOn(*backend, *attention_case);
  CancelFlag plain;  // as the CPU's
  for (CancelFlag* flag : {flags.back().get(), &plain}) {
    flag->Cancel();
    attention_case->problems[kCancelled].cancel = flag;
    EXPECT_TRUE(SameBytes(RunOn(*backend, *attention_case).out, want.out));
  }
}

// Of its rows and of its reports.
TEST(CancelFlagCallsTest, AProblemThatIsDroppedBeforeCostsNextToNothing) {
  const auto backend = MakeLinked();
  const auto attention_case = ThreeSequences(kDrawn, 300);
  const auto flag = *backend->MakeCancelFlag();
  attention_case->problems[kCancelled].cancel = flag.get();
  flag->Cancel();
  const auto steps = [&] {
    const uint64_t before = emulator::Steps();
    RunOn(*backend, *attention_case);
    return emulator::Steps() - before;
  };
  const uint64_t with = steps();
  attention_case->problems.erase(attention_case->problems.begin() + kCancelled);
  EXPECT_LT(with, steps() * 3 / 2);
}

TEST(CancelFlagCallsTest, RaisedByAnotherThreadWhileCallsRun) {
  const auto backend = MakeLinked();
  const auto attention_case = ThreeSequences(kDrawn, 70);
  const Outcome want = RunOn(*backend, *attention_case);
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
    const Outcome got = RunOn(*backend, *attention_case);
    other.join();
    untouched += Untouched(*attention_case, got, want);
    ExpectSameMates(*attention_case, got, want);
  }
  EXPECT_GT(untouched, 0u) << "no call was met while it ran";
}

}  // namespace
}  // namespace edgewise
