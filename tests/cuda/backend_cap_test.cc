// Edge budgets on the CUDA backend: kept edges are the reference's, ledgers pass from call to call.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/cuda/device_run.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::MakeDevice;
using testing::Outcome;
using testing::RunOnDevice;
using testing::RunReference;
using testing::Shape;

// Two samples of two sequences, each sample under a cap of its own.
std::unique_ptr<Case> TwoSamples(const DrawnRows& pattern, double rate, double gaps = 0.0) {
  Shape shape;
  shape.lengths = {60, 101};
  shape.mean_rate = rate;
  shape.gap_share = gaps;
  auto attention_case = std::make_unique<Case>(shape);
  for (uint32_t sample = 0; sample < 2; ++sample) {
    DrawnRows drawn = pattern;
    drawn.key = {11, sample, 0, 0};
    attention_case->AddProblems(drawn, static_cast<int32_t>(sample));
  }
  attention_case->AskForAll();
  return attention_case;
}

uint64_t EdgesUnder(const Case& attention_case, const Outcome& outcome, int32_t cap) {
  uint64_t edges = 0;
  for (size_t p = 0; p < outcome.reports.size(); ++p) {
    if (attention_case.problems[p].cap != cap) continue;
    for (const HeadReport& head : outcome.reports[p].heads) edges += head.edges;
  }
  return edges;
}

TEST(BackendCapTest, KeptEdgesAreTheReferences) {
  auto backend = MakeDevice();
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    for (const bool forced : {false, true}) {
      for (const double gaps : {0.0, 0.2}) {
        DrawnRows pattern;
        pattern.law = law;
        pattern.self_loops = forced;
        const auto attention_case = TwoSamples(pattern, 0.15, gaps);
        const Outcome free = RunReference(*attention_case, {EdgeCap{}, EdgeCap{}});
        const uint64_t first = EdgesUnder(*attention_case, free, 0), second = EdgesUnder(*attention_case, free, 1);
        for (const double share : {1.0, 0.999, 0.5, 0.35}) {
          std::vector<EdgeCap> caps(2);
          caps[0].max_edges = static_cast<uint64_t>(static_cast<double>(first) * share);
          caps[1].max_edges = share == 1.0 ? second - 1 : second;
          const Outcome want = RunReference(*attention_case, caps);
          const Outcome got = RunOnDevice(*backend, *attention_case, caps);
          testing::ExpectSameReports(got, want, 1e-4);
          EXPECT_LE(testing::LargestDifference(got.out, want.out), 1e-4);
          for (int c = 0; c < 2; ++c) EXPECT_EQ(got.caps[c].capped, want.caps[c].capped) << share;
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(BackendCapTest, ALargerAllowanceKeepsASuperset) {
  auto backend = MakeDevice();
  const auto attention_case = TwoSamples(DrawnRows{}, 0.3);
  std::vector<uint64_t> before;
  for (const uint64_t allowance : {0u, 1u, 10u, 500u, 501u, 3000u}) {
    const Outcome got = RunOnDevice(*backend, *attention_case, {EdgeCap{allowance}, EdgeCap{}});
    EXPECT_LE(EdgesUnder(*attention_case, got, 0), allowance);
    std::vector<uint64_t> edges;
    for (size_t p = 0; p < 2; ++p) {
      for (size_t h = 0; h < got.reports[p].heads.size(); ++h) {
        const HeadEdges& graph = got.reports[p].heads[h].graph;
        for (size_t i = 0; i + 1 < graph.row_offsets.size(); ++i) {
          for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e) {
            edges.push_back(((p * 8 + h) * 128 + i) * 128 + graph.keys[e]);
          }
        }
      }
    }
    EXPECT_TRUE(std::includes(edges.begin(), edges.end(), before.begin(), before.end())) << allowance;
    before = edges;
  }
}

TEST(BackendCapTest, LedgersPassFromCallToCall) {
  auto backend = MakeDevice();
  const auto attention_case = TwoSamples(DrawnRows{.self_loops = true}, 0.2);
  uint64_t remaining = 4000;
  auto ledger = backend->MakeLedger(remaining);
  ASSERT_TRUE(ledger.ok());
  auto copy = backend->CopyLedger(**ledger);
  ASSERT_TRUE(copy.ok());
  for (const uint64_t parts : {3u, 2u, 1u}) {
    EdgeCap cap;
    cap.ledger = ledger->get();
    cap.share = {kWholeShare / parts + 1, 400, 100};
    cap.share.fraction = std::min(cap.share.fraction, kWholeShare);
    const uint64_t allowance = LayerAllowance(remaining, cap.share);
    const Outcome got = RunOnDevice(*backend, *attention_case, {cap, EdgeCap{}});
    const Outcome want = RunReference(*attention_case, {EdgeCap{allowance}, EdgeCap{}});
    testing::ExpectSameReports(got, want, 1e-4);
    remaining -= EdgesUnder(*attention_case, got, 0);
    const auto left = backend->Remaining(**ledger);
    ASSERT_TRUE(left.ok());
    EXPECT_EQ(*left, remaining);
  }
  EXPECT_EQ(*backend->Remaining(**copy), 4000u);
}

TEST(BackendCapTest, PatternsThatDrawNothingUseTheirAllowance) {
  auto backend = MakeDevice();
  Shape shape;
  shape.lengths = {20, 50};
  Case attention_case(shape);
  attention_case.AddProblems(AllPairs{true}, 0);
  auto ledger = backend->MakeLedger(10000);
  ASSERT_TRUE(ledger.ok());
  EdgeCap cap;
  cap.ledger = ledger->get();
  RunOnDevice(*backend, attention_case, {cap});
  EXPECT_EQ(*backend->Remaining(**ledger), 10000u - 2 * (20 * 21 / 2 + 50 * 51 / 2));
}

}  // namespace
}  // namespace edgewise
