// Attend of the CUDA backend against the float64 reference, and the promises that hold on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/cuda/device_run.h"
#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/cancel_case.h"

namespace edgewise {
namespace {

using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::MakeCase;
using testing::MakeDevice;
using testing::OnGpu;
using testing::Outcome;
using testing::Pattern;
using testing::RunOnDevice;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

class BackendAttentionTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = MakeDevice(GetParam());
  const double tolerance_ = GetParam() == "fp32" ? 1e-4 : 2e-2;
};

INSTANTIATE_TEST_SUITE_P(Precisions, BackendAttentionTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

std::string Named(const std::string& name, int length) { return name + " of " + std::to_string(length); }

TEST_P(BackendAttentionTest, PatternsMatchTheReference) {
  for (const Pattern& pattern : testing::Patterns()) {
    for (const int length : {1, 2, 65, 150}) {
      Shape shape;
      shape.lengths = {length, 7};
      auto attention_case = MakeCase(shape, pattern);
      const Outcome want = RunReference(*attention_case);
      const Outcome got = RunOnDevice(*backend_, *attention_case);
      EXPECT_LE(testing::RelativeDifference(got.out, want.out), tolerance_) << Named(pattern.name, length);
      testing::ExpectSameReports(got, want, 1e-4);
      if (HasFailure()) return;
    }
  }
}

TEST_P(BackendAttentionTest, DrawnGraphsAreThoseOfTheReference) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    for (const double rate : {0.002, 0.05, 0.5, 1.0}) {
      for (const double gaps : {0.0, 0.2}) {
        Shape shape;
        shape.lengths = {1, 90, 201};
        shape.mean_rate = rate;
        shape.gap_share = gaps;
        shape.value_dim = 24;
        shape.rank = rate > 0.1 ? 16 : 48;
        Case attention_case(shape);
        DrawnRows drawn;
        drawn.law = law;
        drawn.exploration = rate > 0.01 ? 0.01f : 0.0f;
        drawn.self_loops = rate == 0.5;
        drawn.local_window = rate == 0.05 ? 6 : 0;
        drawn.key = {77, 3, 2, 1};
        attention_case.AddProblems(drawn);
        attention_case.AskForAll();
        const Outcome want = RunReference(attention_case);
        const Outcome got = RunOnDevice(*backend_, attention_case);
        EXPECT_LE(testing::RelativeDifference(got.out, want.out), tolerance_) << rate << " " << gaps;
        testing::ExpectSameReports(got, want, 1e-4);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(BackendAttentionTest, AGraphGivenBackGivesTheSameBytes) {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.key = {5, 0, 0, 0}}; }});
  patterns.push_back({"multi", [](int32_t) { return DrawnRows{.law = Law::kPoissonMulti, .key = {5, 0, 0, 0}}; }});
  for (const Pattern& pattern : patterns) {
    for (const double rate : {0.05, 0.7}) {
      Shape shape;
      shape.lengths = {130, 40};
      shape.mean_rate = rate;
      auto attention_case = MakeCase(shape, pattern);
      const bool drawn = std::holds_alternative<DrawnRows>(attention_case->problems[0].pattern);
      if (!drawn && rate > 0.5) continue;
      const Outcome first = RunOnDevice(*backend_, *attention_case);
      std::vector<std::vector<HeadEdges>> graphs;
      for (const AttentionReport& report : first.reports) {
        graphs.emplace_back();
        for (const HeadReport& head : report.heads) graphs.back().push_back(head.graph);
      }
      for (size_t p = 0; p < graphs.size(); ++p) {
        attention_case->problems[p].pattern = ExplicitEdges{&graphs[p], !drawn};
      }
      const Outcome again = RunOnDevice(*backend_, *attention_case);
      EXPECT_TRUE(SameBytes(again.out, first.out)) << pattern.name << " at " << rate;
    }
  }
}

TEST_P(BackendAttentionTest, AnInputAnswersAsItWouldAlone) {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {9, 1, 0, 0}}; }});
  for (const Pattern& pattern : patterns) {
    Shape shape;
    shape.lengths = {33, 100, 5, 64};
    shape.mean_rate = 0.2;
    auto together = MakeCase(shape, pattern);
    const Outcome all = RunOnDevice(*backend_, *together);
    for (size_t p = 0; p < together->problems.size(); ++p) {
      Case alone(shape);
      alone.AddProblems(AllPairs{});
      AttentionProblem problem = alone.problems[p];
      problem.pattern = together->problems[p].pattern;
      const int64_t first = problem.out_row;
      problem.out_row = 0;
      alone.problems = {problem};
      alone.out_rows = problem.tokens;
      const Outcome one = RunOnDevice(*backend_, alone);
      const auto width = static_cast<size_t>(alone.inputs.v.columns);
      EXPECT_TRUE(SameBytes(one.out, std::span(all.out).subspan(first * width, one.out.size())))
          << pattern.name << " sequence " << p;
    }
  }
}

TEST_P(BackendAttentionTest, BiasesMatchTheReference) {
  for (const BiasKind kind : testing::kBiasKinds) {
    for (const bool draws : {false, true}) {
      Shape shape;
      shape.lengths = {70, 12};
      shape.gap_share = 0.1;
      Case attention_case(shape);
      attention_case.AddProblems(draws ? AttentionPattern(DrawnRows{}) : AttentionPattern(AllPairs{true}));
      Biases biases(kind, attention_case);
      attention_case.AskForAll();
      const Outcome want = RunReference(attention_case);
      const Outcome got = RunOnDevice(*backend_, attention_case);
      EXPECT_LE(testing::RelativeDifference(got.out, want.out), tolerance_) << static_cast<int>(kind) << " " << draws;
      testing::ExpectSameReports(got, want, 1e-4);
    }
  }
}

TEST_P(BackendAttentionTest, OneQueryAfterCachedKeys) {
  for (const bool causal : {false, true}) {
    Shape shape;
    shape.lengths = {77};
    Case whole(shape), last(shape);
    whole.AddProblems(AllPairs{causal});
    last.AddProblems(AllPairs{causal});
    last.problems[0].first_query = 76;
    last.out_rows = 1;
    const Outcome all = RunOnDevice(*backend_, whole);
    const Outcome one = RunOnDevice(*backend_, last);
    const auto width = static_cast<size_t>(whole.inputs.v.columns);
    EXPECT_TRUE(SameBytes(one.out, std::span(all.out).subspan(76 * width, width)));
    EXPECT_EQ(one.reports[0].heads[0].edges, 77u);
  }
}

// Raised before, and by another thread while it may be computed.
TEST_P(BackendAttentionTest, ADroppedSequenceChangesNoOther) {
  std::vector<Pattern> patterns = testing::Patterns();
  patterns.push_back({"drawn", [](int32_t) { return DrawnRows{.self_loops = true, .key = {9, 1, 0, 0}}; }});
  for (const Pattern& pattern : patterns) {
    SCOPED_TRACE(pattern.name);
    const auto attention_case = testing::ThreeSequences(pattern, OnGpu() ? 3000 : 100);
    const Outcome want = RunOnDevice(*backend_, *attention_case);
    for (const bool before : {true, false}) {
      const std::unique_ptr<CancelFlag> flag = *backend_->MakeCancelFlag();
      attention_case->problems[testing::kCancelled].cancel = flag.get();
      if (before) flag->Cancel();
      std::thread other([&] { flag->Cancel(); });
      const Outcome got = RunOnDevice(*backend_, *attention_case);
      other.join();
      testing::ExpectSameMates(*attention_case, got, want);
      if (!before) continue;
      const size_t all = testing::RowsOf(*attention_case, want, testing::kCancelled).size();
      EXPECT_EQ(testing::Untouched(*attention_case, got, want), all) << "rows were written";
    }
  }
}

// At the length of use on a GPU; the CPU is held to the float64 reference elsewhere.
TEST_P(BackendAttentionTest, LongSequencesMatchTheCpu) {
  const auto drawn = [](int32_t) { return DrawnRows{.key = {21, 0, 2, 0}}; };
  const std::pair<Pattern, double> cases[] = {
      {{"drawn, few", drawn}, 0.02},
      {{"drawn, many", drawn}, 0.5},
      {{"all pairs", [](int32_t) { return AllPairs{}; }}, 0.1},
      {{"causal", [](int32_t) { return AllPairs{.causal = true}; }}, 0.1},
      {{"windows", [](int32_t n) { return testing::Windows(n, 16, false); }}, 0.1}};
  for (const auto& [pattern, rate] : cases) {
    SCOPED_TRACE(pattern.name);
    Shape shape;
    shape.lengths = {OnGpu() ? 16384 : 600};
    shape.heads = 1;
    shape.head_dim = 32;
    shape.mean_rate = rate;
    Case attention_case(shape);
    attention_case.AddProblems(pattern.make(shape.lengths[0]));
    attention_case.reports[0]->wanted.key_degrees = true;
    const auto threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
    const Outcome want = testing::RunCpu(attention_case, testing::AvailableIsas().back(), threads);
    const Outcome got = RunOnDevice(*backend_, attention_case);
    EXPECT_LE(testing::RelativeDifference(got.out, want.out), tolerance_);
    const HeadReport &of_cpu = want.reports[0].heads[0], &of_device = got.reports[0].heads[0];
    EXPECT_EQ(of_device.edges, of_cpu.edges);
    EXPECT_EQ(of_device.isolated, of_cpu.isolated);
    EXPECT_EQ(of_device.key_degrees, of_cpu.key_degrees);
  }
}

TEST_P(BackendAttentionTest, ScoresThatOverflowGiveNan) {
  Shape shape;
  shape.lengths = {40};
  Case attention_case(shape);
  for (float& value : attention_case.data) value *= 1e25f;
  attention_case.AddProblems(AllPairs{});
  attention_case.AddProblems(DrawnRows{.self_loops = true});
  const Outcome got = RunOnDevice(*backend_, attention_case);
  EXPECT_TRUE(std::isnan(got.out.front()));
  EXPECT_TRUE(std::isnan(got.out.back()));
}

}  // namespace
}  // namespace edgewise
