// A problem whose flag is raised ends early, before or while kernels run, and nothing else changes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/drop_flags.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/graph_layers.h"
#include "tests/kernels/attention_patterns.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::ExpectSame;
using testing::Got;
using testing::Layers;
using testing::Make;
using testing::Outcome;
using testing::Pattern;
using testing::RunOnDevice;
using testing::SameBytes;
using testing::Shape;

constexpr size_t kDropped = 1;  // of the problems of a case

DrawnRows Drawn(uint64_t seed) { return {.self_loops = true, .key = {seed, 1, 2, 3}}; }

std::unique_ptr<Case> ThreeSequences(const Pattern& pattern) {
  Shape shape;
  shape.lengths = {40, 70, 33};
  auto attention_case = testing::MakeCase(shape, pattern);
  for (const auto& report : attention_case->reports) report->want_graph = false;
  return attention_case;
}

std::vector<Pattern> AllPatterns() {
  return {{"drawn", [](int32_t) { return Drawn(3); }},
          {"multi",
           [](int32_t) {
             return DrawnRows{.law = Law::kPoissonMulti, .key = {4, 0, 0, 0}};
           }},
          {"pairs", [](int32_t) { return AllPairs{}; }},
          {"causal", [](int32_t) { return AllPairs{true}; }},
          {"windows", [](int32_t n) { return testing::Windows(n, 3, false); }}};
}
const Pattern kDrawn = {"drawn", [](int32_t) { return Drawn(5); }};

std::span<const float> RowsOf(const Case& attention_case, const Outcome& outcome, size_t problem) {
  const size_t width = static_cast<size_t>(attention_case.inputs.v.columns);
  const AttentionProblem& of = attention_case.problems[problem];
  return std::span(outcome.out).subspan(of.out_row * width, (of.tokens - of.first_query) * width);
}

// All but the dropped problem is as if there were no flag.
void ExpectSameMates(const Case& attention_case, const Outcome& got, const Outcome& want) {
  for (size_t p = 0; p < attention_case.problems.size(); ++p) {
    if (p == kDropped) continue;
    EXPECT_TRUE(SameBytes(RowsOf(attention_case, got, p), RowsOf(attention_case, want, p))) << p;
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadReport &a = got.reports[p].heads[h], &b = want.reports[p].heads[h];
      EXPECT_EQ(a.edges, b.edges) << p;
      EXPECT_EQ(a.isolated, b.isolated) << p;
      EXPECT_EQ(a.expected, b.expected) << p;
      EXPECT_EQ(a.key_degrees, b.key_degrees) << p;
      EXPECT_EQ(a.graph.keys, b.graph.keys) << p;
    }
  }
}

// How many values of the dropped problem were not written. The others have to be right.
size_t Untouched(const Case& attention_case, const Outcome& got, const Outcome& want) {
  const std::span<const float> a = RowsOf(attention_case, got, kDropped), b = RowsOf(attention_case, want, kDropped);
  size_t untouched = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    untouched += std::isnan(a[i]);
    EXPECT_TRUE(std::isnan(a[i]) || std::memcmp(&a[i], &b[i], sizeof(float)) == 0);
  }
  return untouched;
}

class DropFlagTest : public ::testing::TestWithParam<emulator::Order> {
 protected:
  void SetUp() override { emulator::SetOrder(GetParam()); }
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

INSTANTIATE_TEST_SUITE_P(Orders, DropFlagTest,
                         ::testing::Values(emulator::kForward, emulator::kBackward, emulator::Shuffled(7)));

TEST_P(DropFlagTest, RaisedBeforeNothingIsWritten) {
  for (const char* precision : {"fp32", "bf16"}) {
    const auto backend = Make(nullptr, precision);
    for (const Pattern& pattern : AllPatterns()) {
      SCOPED_TRACE(pattern.name);
      const auto attention_case = ThreeSequences(pattern);
      const Outcome want = RunOnDevice(*backend, *attention_case);
      const auto flag = *backend->MakeDropFlag();
      attention_case->problems[kDropped].drop = flag.get();
      const Outcome not_yet = RunOnDevice(*backend, *attention_case);
      EXPECT_TRUE(SameBytes(not_yet.out, want.out));
      flag->Raise();
      const Outcome got = RunOnDevice(*backend, *attention_case);
      EXPECT_EQ(Untouched(*attention_case, got, want), RowsOf(*attention_case, want, kDropped).size());
      ExpectSameMates(*attention_case, got, want);
    }
  }
}

TEST_P(DropFlagTest, RaisedWhileKernelsRun) {
  const auto backend = Make(nullptr);
  for (const Pattern& pattern : AllPatterns()) {
    SCOPED_TRACE(pattern.name);
    const auto attention_case = ThreeSequences(pattern);
    const uint64_t before = emulator::Steps();
    const Outcome want = RunOnDevice(*backend, *attention_case);
    const uint64_t steps = emulator::Steps() - before;
    // The first ones while the threads of a block look at the flag.
    std::vector<uint64_t> when = {1, 2, 37, 200, 255, 256, 257};
    for (uint64_t eighth = 1; eighth < 8; ++eighth) when.push_back(steps * eighth / 8);
    size_t untouched = 0;
    for (const uint64_t step : when) {
      const auto flag = *backend->MakeDropFlag();
      attention_case->problems[kDropped].drop = flag.get();
      emulator::AtStep(step, [&] { flag->Raise(); });
      const Outcome got = RunOnDevice(*backend, *attention_case);
      EXPECT_TRUE(flag->raised());
      untouched += Untouched(*attention_case, got, want);
      ExpectSameMates(*attention_case, got, want);
    }
    const size_t all = when.size() * RowsOf(*attention_case, want, kDropped).size();
    EXPECT_GT(untouched, all / 4);
    EXPECT_LT(untouched, all) << "some items were done before";
  }
}

// One item over two chunks of keys.
TEST_P(DropFlagTest, ALongRowEndsBetweenItsChunks) {
  const auto backend = Make(nullptr);
  Shape shape;
  shape.lengths = {3, 4200};
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
    const auto flag = *backend->MakeDropFlag();
    attention_case.problems[kDropped].drop = flag.get();
    emulator::AtStep(part == 8 ? steps - 1 : steps * part / 10, [&] { flag->Raise(); });
    const Outcome got = RunOnDevice(*backend, attention_case);
    untouched.push_back(Untouched(attention_case, got, want));
    ExpectSameMates(attention_case, got, want);
  }
  const size_t all = RowsOf(attention_case, want, kDropped).size();
  EXPECT_EQ(untouched[0], all);
  EXPECT_EQ(untouched[1], all) << "in the first chunk";
  EXPECT_EQ(untouched[2], 0u) << "after the last";
}

TEST_P(DropFlagTest, LedgersCapsAndGraphsStayTrue) {
  const auto backend = Make(nullptr);
  const auto attention_case = ThreeSequences(kDrawn);
  for (AttentionProblem& problem : attention_case->problems) problem.cap = 0;
  attention_case->AskForAll();
  for (const uint64_t most : {uint64_t{600}, kNoCap}) {
    Outcome outcomes[2];
    uint64_t left[2] = {};
    for (const int raised : {0, 1}) {
      const auto flag = *backend->MakeDropFlag();
      if (raised == 1) flag->Raise();
      attention_case->problems[kDropped].drop = flag.get();
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
    const AttentionReport &got = outcomes[1].reports[kDropped], &want = outcomes[0].reports[kDropped];
    for (size_t h = 0; h < want.heads.size(); ++h) {
      EXPECT_FALSE(want.heads[h].graph.keys.empty());
      EXPECT_EQ(got.heads[h].graph.row_offsets, want.heads[h].graph.row_offsets);
      EXPECT_EQ(got.heads[h].graph.keys, want.heads[h].graph.keys);
      EXPECT_EQ(got.heads[h].graph.weights, want.heads[h].graph.weights);
    }
  }
}

// What a layer finds where the one before left a dropped problem's rows as they were.
TEST_P(DropFlagTest, RowsOfAnythingHarmNobodyElse) {
  const auto backend = Make(nullptr);
  for (const float garbage : {std::nanf(""), INFINITY, 1e38f, -1e38f}) {
    Outcome outcomes[2];
    for (const int harmed : {0, 1}) {
      const auto attention_case = ThreeSequences(kDrawn);
      for (size_t p = 0; p < 3; ++p) attention_case->problems[p].cap = static_cast<int32_t>(p);
      const auto flag = *backend->MakeDropFlag();
      if (harmed == 1) {
        attention_case->problems[kDropped].drop = flag.get();
        flag->Raise();
        Case& of = *attention_case;
        const AttentionProblem& problem = of.problems[kDropped];
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

TEST(DropFlagCallsTest, OneThatKernelsDoNotSeeChangesNothing) {
  const auto backend = Make(nullptr);
  std::vector<std::unique_ptr<DropFlag>> flags;
  do {
    flags.push_back(*backend->MakeDropFlag());
  } while (cuda::DropFlags::WordOf(flags.back().get()) != nullptr);
  EXPECT_EQ(flags.size(), 16385u);
  const auto attention_case = ThreeSequences(kDrawn);
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
  const auto attention_case = ThreeSequences(kDrawn);
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
