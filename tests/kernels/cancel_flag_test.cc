// CPU attention: what is left of a problem whose flag is raised is not computed, and nothing else changes.
#include "kernels/cancel_flag.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/cancel_case.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::kCancelled;
using testing::Outcome;
using testing::Pattern;
using testing::RowsOf;
using testing::RunCpu;
using testing::SameBytes;
using testing::ThreeSequences;
using testing::Untouched;

std::vector<Pattern> AllPatterns() {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {5, 0, 0, 0}}; }});
  return patterns;
}

TEST(CancelFlagTest, RaisedBeforeNothingIsComputed) {
  for (const Pattern& pattern : AllPatterns()) {
    const auto attention_case = ThreeSequences(pattern, 200);
    CancelFlag flag, other;
    for (const Isa isa : AvailableIsas()) {
      const std::string what = pattern.name + " " + IsaName(isa);
      attention_case->problems[kCancelled].cancel = nullptr;
      const Outcome want = RunCpu(*attention_case, isa, 2);
      attention_case->problems[kCancelled].cancel = &other;
      EXPECT_TRUE(SameBytes(RunCpu(*attention_case, isa, 2).out, want.out)) << what;
      attention_case->problems[kCancelled].cancel = &flag;
      flag.Cancel();
      const Outcome got = RunCpu(*attention_case, isa, 2);
      EXPECT_EQ(Untouched(*attention_case, got, want), RowsOf(*attention_case, want, kCancelled).size()) << what;
      SCOPED_TRACE(what);
      ExpectSameMates(*attention_case, got, want);
    }
  }
}

TEST(CancelFlagTest, GraphsAndLedgersStayTrue) {
  const auto backend = *CreateBackend({"cpu", 2});
  const Pattern drawn = AllPatterns().back();
  for (const bool graph : {false, true}) {
    const auto attention_case = ThreeSequences(drawn, 200);
    std::vector<float> want_out;
    std::vector<int32_t> want_keys;
    uint64_t want_edges = 0;
    for (const bool raised : {false, true}) {
      const auto flag = *backend->MakeCancelFlag();
      if (raised) flag->Cancel();
      AttentionProblem& problem = attention_case->problems[kCancelled];
      problem.cancel = flag.get();
      problem.report->wanted.graph = graph;
      const auto ledger = *backend->MakeLedger(1000000);
      EdgeCap cap;
      cap.max_edges = 3000;
      cap.ledger = ledger.get();
      problem.cap = graph ? -1 : 0;
      std::vector<float> out(static_cast<size_t>(attention_case->out_rows * attention_case->inputs.v.columns));
      const Matrix to(out.data(), attention_case->out_rows, attention_case->inputs.v.columns);
      ASSERT_TRUE(backend->Attend(attention_case->inputs, attention_case->problems, std::span(&cap, 1), to).ok());
      const uint64_t used = 1000000 - *backend->Remaining(*ledger);
      if (raised) {
        EXPECT_TRUE(SameBytes(out, want_out));
        EXPECT_EQ(used, want_edges);
        EXPECT_EQ(problem.report->heads[0].graph.keys, want_keys);
        EXPECT_EQ(used > 0, !graph);
        EXPECT_EQ(want_keys.empty(), !graph);
      }
      want_out = out;
      want_edges = used;
      want_keys = problem.report->heads[0].graph.keys;
    }
  }
}

TEST(CancelFlagTest, RaisedByAnotherThreadMeanwhile) {
  const Pattern drawn = AllPatterns().back();
  const auto attention_case = ThreeSequences(drawn, 1500);
  const Outcome want = RunCpu(*attention_case, AvailableIsas().back(), 2);
  const size_t all = RowsOf(*attention_case, want, kCancelled).size();
  int whole = 0, part = 0, none = 0;
  for (int wait = 0; wait < 400 && part == 0; ++wait) {
    CancelFlag flag;
    attention_case->problems[kCancelled].cancel = &flag;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * wait));
      flag.Cancel();
    });
    const Outcome got = RunCpu(*attention_case, AvailableIsas().back(), 2);
    other.join();
    ExpectSameMates(*attention_case, got, want);
    const size_t untouched = Untouched(*attention_case, got, want);
    ++(untouched == 0 ? whole : untouched == all ? none : part);
  }
  EXPECT_GT(part, 0) << whole << " were computed as a whole, " << none << " not at all";
}

}  // namespace
}  // namespace edgewise
