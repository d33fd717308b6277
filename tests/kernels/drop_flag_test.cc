// CPU attention: what is left of a problem whose flag is raised is not computed, and nothing else changes.
#include "kernels/drop_flag.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "kernels/backend.h"
#include "tests/kernels/attention_patterns.h"

namespace edgewise {
namespace {

using testing::AvailableIsas;
using testing::Case;
using testing::Outcome;
using testing::Pattern;
using testing::RunCpu;
using testing::SameBytes;
using testing::Shape;

constexpr size_t kDropped = 1;  // of the problems of a case

std::vector<Pattern> AllPatterns() {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {5, 0, 0, 0}}; }});
  return patterns;
}

// Without graphs, for which a dropped problem is computed as any.
std::unique_ptr<Case> MakeCase(const Pattern& pattern, int length = 200) {
  Shape shape;
  shape.lengths = {30, length, 90};
  auto attention_case = testing::MakeCase(shape, pattern);
  for (const auto& report : attention_case->reports) report->want_graph = false;
  return attention_case;
}

std::span<const float> RowsOf(const Case& attention_case, const Outcome& outcome, size_t problem) {
  const auto width = static_cast<size_t>(attention_case.inputs.v.columns);
  const AttentionProblem& of = attention_case.problems[problem];
  return std::span(outcome.out)
      .subspan(static_cast<size_t>(of.out_row) * width, static_cast<size_t>(of.tokens) * width);
}

void ExpectSameMates(const Case& attention_case, const Outcome& got, const Outcome& want, const std::string& what) {
  for (size_t p = 0; p < attention_case.problems.size(); ++p) {
    if (p == kDropped) continue;
    EXPECT_TRUE(SameBytes(RowsOf(attention_case, got, p), RowsOf(attention_case, want, p))) << what;
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      EXPECT_EQ(got.reports[p].heads[h].edges, want.reports[p].heads[h].edges) << what;
      EXPECT_EQ(got.reports[p].heads[h].isolated, want.reports[p].heads[h].isolated) << what;
      EXPECT_EQ(got.reports[p].heads[h].key_degrees, want.reports[p].heads[h].key_degrees) << what;
      EXPECT_EQ(got.reports[p].heads[h].expected, want.reports[p].heads[h].expected) << what;
    }
  }
}

// How many values of the dropped problem were not written. The others have to be right.
size_t Untouched(const Case& attention_case, const Outcome& got, const Outcome& want) {
  const std::span<const float> a = RowsOf(attention_case, got, kDropped), b = RowsOf(attention_case, want, kDropped);
  size_t untouched = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    untouched += std::isnan(a[i]) ? 1 : 0;
    EXPECT_TRUE(std::isnan(a[i]) || std::memcmp(&a[i], &b[i], sizeof(float)) == 0);
  }
  return untouched;
}

TEST(DropFlagTest, RaisedBeforeNothingIsComputed) {
  for (const Pattern& pattern : AllPatterns()) {
    const auto attention_case = MakeCase(pattern);
    DropFlag flag, other;
    for (const Isa isa : AvailableIsas()) {
      const std::string what = pattern.name + " " + IsaName(isa);
      attention_case->problems[kDropped].drop = nullptr;
      const Outcome want = RunCpu(*attention_case, isa, 2);
      attention_case->problems[kDropped].drop = &other;
      EXPECT_TRUE(SameBytes(RunCpu(*attention_case, isa, 2).out, want.out)) << what;
      attention_case->problems[kDropped].drop = &flag;
      flag.Raise();
      const Outcome got = RunCpu(*attention_case, isa, 2);
      EXPECT_EQ(Untouched(*attention_case, got, want), RowsOf(*attention_case, want, kDropped).size()) << what;
      ExpectSameMates(*attention_case, got, want, what);
    }
  }
}

TEST(DropFlagTest, GraphsAndLedgersStayTrue) {
  const auto backend = *CreateBackend({"cpu", 2});
  const Pattern drawn = AllPatterns().back();
  for (const bool graph : {false, true}) {
    const auto attention_case = MakeCase(drawn);
    std::vector<float> want_out;
    std::vector<int32_t> want_keys;
    uint64_t want_edges = 0;
    for (const bool raised : {false, true}) {
      const auto flag = *backend->MakeDropFlag();
      if (raised) flag->Raise();
      AttentionProblem& problem = attention_case->problems[kDropped];
      problem.drop = flag.get();
      problem.report->want_graph = graph;
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

TEST(DropFlagTest, RaisedByAnotherThreadMeanwhile) {
  const Pattern drawn = AllPatterns().back();
  const auto attention_case = MakeCase(drawn, 1500);
  const Outcome want = RunCpu(*attention_case, AvailableIsas().back(), 2);
  const size_t all = RowsOf(*attention_case, want, kDropped).size();
  int whole = 0, part = 0, none = 0;
  for (int wait = 0; wait < 400 && part == 0; ++wait) {
    DropFlag flag;
    attention_case->problems[kDropped].drop = &flag;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * wait));
      flag.Raise();
    });
    const Outcome got = RunCpu(*attention_case, AvailableIsas().back(), 2);
    other.join();
    ExpectSameMates(*attention_case, got, want, std::to_string(wait));
    const size_t untouched = Untouched(*attention_case, got, want);
    ++(untouched == 0 ? whole : untouched == all ? none : part);
  }
  EXPECT_GT(part, 0) << whole << " were computed as a whole, " << none << " not at all";
}

}  // namespace
}  // namespace edgewise
