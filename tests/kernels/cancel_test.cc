// What is left of a problem whose flag is raised is not computed, and nothing else changes, on every device.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cancel_flag.h"
#include "tests/kernels/cancel_case.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::kCancelled;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::SameBytes;
using testing::ThreeSequences;
using testing::Untouched;

const Pattern kDrawn = {"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {5, 0, 0, 0}}; }};

std::vector<Pattern> AllPatterns() {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back(kDrawn);
  patterns.push_back({"multi", [](int32_t) { return DrawnRows{.law = Law::kPoissonMulti, .key = {4, 0, 0, 0}}; }});
  patterns.push_back({"dense", [](int32_t) { return DrawnRows{.exploration = 1.0f}; }});
  return patterns;
}

class CancelFlagTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, CancelFlagTest);

class CpuCancelFlagTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuCancelFlagTest);

TEST_P(CancelFlagTest, RaisedBeforeNothingIsWritten) {
  for (const Pattern& pattern : AllPatterns()) {
    SCOPED_TRACE(pattern.name);
    const auto made = ThreeSequences(pattern, Sized(200, 100));
    const Outcome want = Run(*made);
    const auto flag = *backend_->MakeCancelFlag();
    made->problems[kCancelled].cancel = flag.get();
    EXPECT_TRUE(SameBytes(Run(*made).out, want.out)) << "not raised";
    flag->Cancel();
    const Outcome got = Run(*made);
    EXPECT_EQ(Untouched(*made, got, want), RowsOf(*made, want, kCancelled).size());
    ExpectSameMates(*made, got, want);
  }
}

TEST_P(CancelFlagTest, RaisedByAnotherThreadMeanwhileNoOtherChanges) {
  for (const Pattern& pattern : AllPatterns()) {
    SCOPED_TRACE(pattern.name);
    const auto made = ThreeSequences(pattern, Sized(1000, 100));
    const Outcome want = Run(*made);
    const auto flag = *backend_->MakeCancelFlag();
    made->problems[kCancelled].cancel = flag.get();
    std::thread other([&] { flag->Cancel(); });
    const Outcome got = Run(*made);
    other.join();
    Untouched(*made, got, want);
    ExpectSameMates(*made, got, want);
  }
}

// tests/cuda/cancel_steps_test.cc asks as much of a GPU's kernels, step by step.
TEST_P(CpuCancelFlagTest, RaisedMeanwhileThePartThatIsLeftIsNotComputed) {
  const auto made = ThreeSequences(kDrawn, 1500);
  const Outcome want = Run(*made);
  const size_t all = RowsOf(*made, want, kCancelled).size();
  int whole = 0, part = 0, none = 0;
  for (int wait = 0; wait < 400 && part == 0; ++wait) {
    CancelFlag flag;
    made->problems[kCancelled].cancel = &flag;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * wait));
      flag.Cancel();
    });
    const Outcome got = Run(*made);
    other.join();
    ExpectSameMates(*made, got, want);
    const size_t untouched = Untouched(*made, got, want);
    ++(untouched == 0 ? whole : untouched == all ? none : part);
  }
  EXPECT_GT(part, 0) << whole << " were computed as a whole, " << none << " not at all";
}

TEST_P(CancelFlagTest, LedgersCapsAndGraphsStayTrue) {
  const auto made = ThreeSequences(kDrawn, Sized(200, 70));
  for (const bool graph : {false, true}) {
    for (const uint64_t most : {uint64_t{600}, kNoCap}) {
      for (AttentionProblem& problem : made->problems) problem.cap = 0;
      made->reports[kCancelled]->wanted.graph = graph;
      Outcome outcomes[2];
      uint64_t left[2] = {};
      for (const int raised : {0, 1}) {
        const auto flag = *backend_->MakeCancelFlag();
        if (raised == 1) flag->Cancel();
        made->problems[kCancelled].cancel = flag.get();
        const auto ledger = *backend_->MakeLedger(100000);
        EdgeCap cap;
        cap.max_edges = most;
        cap.ledger = ledger.get();
        cap.share = {kWholeShare, 0, 0};
        outcomes[raised] = Run(*made, {cap});
        left[raised] = *backend_->Remaining(*ledger);
      }
      EXPECT_EQ(left[1], left[0]);
      EXPECT_LT(left[0], 100000u);
      EXPECT_EQ(outcomes[1].caps[0].capped, outcomes[0].caps[0].capped);
      EXPECT_EQ(outcomes[0].caps[0].capped, most != kNoCap);
      ExpectSameMates(*made, outcomes[1], outcomes[0]);
      const AttentionReport &got = outcomes[1].reports[kCancelled], &want = outcomes[0].reports[kCancelled];
      for (size_t h = 0; h < want.heads.size() && graph; ++h) {
        EXPECT_FALSE(want.heads[h].graph.keys.empty());
        EXPECT_EQ(got.heads[h].graph.row_offsets, want.heads[h].graph.row_offsets);
        EXPECT_EQ(got.heads[h].graph.keys, want.heads[h].graph.keys);
        EXPECT_EQ(got.heads[h].graph.weights, want.heads[h].graph.weights);
      }
    }
  }
}

// What a layer finds where the one before left a dropped problem's rows as they were.
TEST_P(CancelFlagTest, RowsOfAnythingHarmNobodyElse) {
  for (const float garbage : {std::nanf(""), INFINITY, 1e38f, -1e38f}) {
    Outcome outcomes[2];
    for (const int harmed : {0, 1}) {
      const auto made = ThreeSequences(kDrawn, 70);
      for (size_t p = 0; p < 3; ++p) made->problems[p].cap = static_cast<int32_t>(p);
      const auto flag = *backend_->MakeCancelFlag();
      if (harmed == 1) {
        made->problems[kCancelled].cancel = flag.get();
        flag->Cancel();
        Case& of = *made;
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
      outcomes[harmed] = Run(*made, {EdgeCap{150}, EdgeCap{150}, EdgeCap{150}});
      if (harmed == 1) ExpectSameMates(*made, outcomes[1], outcomes[0]);
    }
    for (const int mate : {0, 2}) EXPECT_EQ(outcomes[1].caps[mate].capped, outcomes[0].caps[mate].capped);
  }
}

}  // namespace
}  // namespace edgewise
