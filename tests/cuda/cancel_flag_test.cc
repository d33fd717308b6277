// A problem whose flag is raised ends early, before or while kernels run, and nothing else changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cuda/device_run.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/cancel_case.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::kCancelled;
using testing::MakeLinked;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::RunOnDevice;
using testing::SameBytes;
using testing::Shape;
using testing::ThreeSequences;
using testing::Untouched;

DrawnRows Drawn(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

std::vector<Pattern> AllPatterns() {
  return {{"drawn", [](int32_t) { return Drawn(3); }},
          {"multi",
           [](int32_t) {
             return DrawnRows{.law = Law::kPoissonMulti, .key = {4, 0, 0, 0}};
           }},
          {"dense", [](int32_t) { return DrawnRows{.exploration = 1.0f}; }},
          {"pairs", [](int32_t) { return AllPairs{}; }},
          {"causal", [](int32_t) { return AllPairs{true}; }},
          {"windows", [](int32_t n) { return testing::Windows(n, 3, false); }}};
}
const Pattern kDrawn = {"drawn", [](int32_t) { return Drawn(5); }};

class CancelFlagTest : public ::testing::TestWithParam<emulator::Order> {
 protected:
  void SetUp() override { emulator::SetOrder(GetParam()); }
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CancelFlagTest,
                         ::testing::Values(emulator::kForward, emulator::kBackward, emulator::Shuffled(7)));

TEST_P(CancelFlagTest, RaisedBeforeNothingIsWritten) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto backend = MakeLinked(precision);
    for (const Pattern& pattern : AllPatterns()) {
      SCOPED_TRACE(pattern.name);
      const auto attention_case = ThreeSequences(pattern, 70);
      const Outcome want = RunOnDevice(*backend, *attention_case);
      const auto flag = *backend->MakeCancelFlag();
      attention_case->problems[kCancelled].cancel = flag.get();
      const Outcome not_yet = RunOnDevice(*backend, *attention_case);
      EXPECT_TRUE(SameBytes(not_yet.out, want.out));
      flag->Cancel();
      const Outcome got = RunOnDevice(*backend, *attention_case);
      EXPECT_EQ(Untouched(*attention_case, got, want), RowsOf(*attention_case, want, kCancelled).size());
      ExpectSameMates(*attention_case, got, want);
    }
  }
}

TEST_P(CancelFlagTest, RaisedWhileKernelsRun) {
  const auto backend = MakeLinked();
  for (const Pattern& pattern : AllPatterns()) {
    SCOPED_TRACE(pattern.name);
    const auto attention_case = ThreeSequences(pattern, 70);
    const uint64_t before = emulator::Steps();
    const Outcome want = RunOnDevice(*backend, *attention_case);
    const uint64_t steps = emulator::Steps() - before;
    // The first ones while the threads of a block look at the flag.
    std::vector<uint64_t> when = {1, 2, 37, 200, 255, 256, 257};
    for (uint64_t eighth = 1; eighth < 8; ++eighth) when.push_back(steps * eighth / 8);
    size_t untouched = 0;
    for (const uint64_t step : when) {
      const auto flag = *backend->MakeCancelFlag();
      attention_case->problems[kCancelled].cancel = flag.get();
      emulator::AtStep(step, [&] { flag->Cancel(); });
      const Outcome got = RunOnDevice(*backend, *attention_case);
      EXPECT_TRUE(flag->cancelled());
      untouched += Untouched(*attention_case, got, want);
      ExpectSameMates(*attention_case, got, want);
    }
    const size_t all = when.size() * RowsOf(*attention_case, want, kCancelled).size();
    EXPECT_GT(untouched, all / 4);
    EXPECT_LT(untouched, all) << "some items were done before";
  }
}

// One item over two chunks of keys.
TEST_P(CancelFlagTest, ALongRowEndsBetweenItsChunks) {
  const auto backend = MakeLinked();
  Shape shape;
  shape.lengths = {100, 4200};
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
      for (int32_t key = query; key < problem.tokens; key += 50) head.keys.push_back(key);
      head.row_offsets.push_back(static_cast<int64_t>(head.keys.size()));
    }
    problem.out_row = static_cast<int64_t>(3 * p);
    problem.pattern = ExplicitEdges{&edges[p]};
  }
  attention_case.out_rows = 6;
  const uint64_t before = emulator::Steps();
  const Outcome want = RunOnDevice(*backend, attention_case);
  const uint64_t steps = emulator::Steps() - before;
  std::vector<size_t> untouched;
  for (const uint64_t part : {2, 5, 8}) {
    const auto flag = *backend->MakeCancelFlag();
    attention_case.problems[kCancelled].cancel = flag.get();
    emulator::AtStep(part == 8 ? steps - 1 : steps * part / 10, [&] { flag->Cancel(); });
    const Outcome got = RunOnDevice(*backend, attention_case);
    untouched.push_back(Untouched(attention_case, got, want));
    ExpectSameMates(attention_case, got, want);
  }
  const size_t all = RowsOf(attention_case, want, kCancelled).size();
  EXPECT_EQ(untouched[0], all);
  EXPECT_EQ(untouched[1], all) << "in the first chunk";
  EXPECT_EQ(untouched[2], 0u) << "after the last";
}

TEST_P(CancelFlagTest, LedgersCapsAndGraphsStayTrue) {
  const auto backend = MakeLinked();
  const auto attention_case = ThreeSequences(kDrawn, 70);
  for (AttentionProblem& problem : attention_case->problems) problem.cap = 0;
  attention_case->AskForAll();
  for (const uint64_t most : {uint64_t{600}, kNoCap}) {
    Outcome outcomes[2];
    uint64_t left[2] = {};
    for (const int raised : {0, 1}) {
      const auto flag = *backend->MakeCancelFlag();
      if (raised == 1) flag->Cancel();
      attention_case->problems[kCancelled].cancel = flag.get();
      const auto ledger = *backend->MakeLedger(100000);
      EdgeCap cap;
      cap.max_edges = most;
      cap.ledger = ledger.get();
      outcomes[raised] = RunOnDevice(*backend, *attention_case, {cap});
      left[raised] = *backend->Remaining(*ledger);
    }
    EXPECT_EQ(left[1], left[0]);
    EXPECT_LT(left[0], 100000u);
    EXPECT_EQ(outcomes[1].caps[0].capped, outcomes[0].caps[0].capped);
    EXPECT_EQ(outcomes[0].caps[0].capped, most != kNoCap);
    ExpectSameMates(*attention_case, outcomes[1], outcomes[0]);
    const AttentionReport &got = outcomes[1].reports[kCancelled], &want = outcomes[0].reports[kCancelled];
    for (size_t h = 0; h < want.heads.size(); ++h) {
      EXPECT_FALSE(want.heads[h].graph.keys.empty());
      EXPECT_EQ(got.heads[h].graph.row_offsets, want.heads[h].graph.row_offsets);
      EXPECT_EQ(got.heads[h].graph.keys, want.heads[h].graph.keys);
      EXPECT_EQ(got.heads[h].graph.weights, want.heads[h].graph.weights);
    }
  }
}

// A layer after one that left the rows of a cancelled problem unwritten.
TEST_P(CancelFlagTest, RowsOfAnythingHarmNobodyElse) {
  const auto backend = MakeLinked();
  for (const float garbage : {std::nanf(""), INFINITY, 1e38f, -1e38f}) {
    Outcome outcomes[2];
    for (const int harmed : {0, 1}) {
      const auto attention_case = ThreeSequences(kDrawn, 70);
      for (size_t p = 0; p < 3; ++p) attention_case->problems[p].cap = static_cast<int32_t>(p);
      const auto flag = *backend->MakeCancelFlag();
      if (harmed == 1) {
        attention_case->problems[kCancelled].cancel = flag.get();
        flag->Cancel();
        Case& of = *attention_case;
        const AttentionProblem& problem = of.problems[kCancelled];
        const auto fill = [&](std::vector<float>& rows, int64_t blocks) {
          const int64_t width = static_cast<int64_t>(rows.size()) / blocks / of.inputs.memberships.rows;
          for (int64_t block = 0; block < blocks; ++block) {
            float* first = rows.data() + (block * of.inputs.memberships.rows + problem.first_row) * width;
            std::fill_n(first, problem.tokens * width, garbage);
          }
        };
        fill(of.data, 3);
        for (auto* rows : {&of.x, &of.y, &of.query_bound, &of.key_bound}) fill(*rows, of.inputs.num_heads);
      }
      outcomes[harmed] = RunOnDevice(*backend, *attention_case, {EdgeCap{150}, EdgeCap{150}, EdgeCap{150}});
      if (harmed == 1) ExpectSameMates(*attention_case, outcomes[1], outcomes[0]);
    }
    for (const int mate : {0, 2}) EXPECT_EQ(outcomes[1].caps[mate].capped, outcomes[0].caps[mate].capped);
  }
}

}  // namespace
}  // namespace edgewise
