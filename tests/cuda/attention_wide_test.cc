// The wide tile kernels have the bytes of the others, whatever the order of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/host/pattern_count.h"
#include "tests/cuda/attention_dense_case.h"
#include "tests/cuda/attention_tiles_case.h"
#include "tests/cuda/emulator_case.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/attention_patterns.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::cuda::testing::DenseCase;
using ::edgewise::cuda::testing::Drawn;
using ::edgewise::cuda::testing::TilesCall;
using ::edgewise::testing::Case;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;

// The heads that the wide kernels take: columns, and whether the precision is bf16.
constexpr std::pair<int, bool> kHeads[] = {{64, true}, {128, true}, {64, false}};

std::vector<float> AttendOnDevice(const Case& made, bool bf16) {
  const auto device = *Device::Open(0);
  std::vector<float> out(static_cast<size_t>(made.out_rows * made.out_columns()), TilesCall::kUnwritten);
  Attention attention(*device, bf16);
  EXPECT_TRUE(
      attention.Attend(made.inputs, made.problems, {}, Matrix(out.data(), made.out_rows, made.out_columns())).ok());
  EXPECT_TRUE(attention.Collect({}).ok());
  return out;
}

// Queries first_query..tokens - 1 in one group, which see every second run of 64 keys.
GroupedKeys EverySecondRun(int32_t tokens, int32_t first_query, bool causal) {
  GroupedKeys groups;
  groups.group_begin = {first_query, tokens};
  for (int32_t key = 0; key < tokens; ++key) {
    if (key / kTileKeys % 2 == 0) groups.keys.push_back(key);
  }
  groups.key_offsets = {0, static_cast<int64_t>(groups.keys.size())};
  groups.causal = causal;
  return groups;
}

TEST(AttentionWideTest, HasTheBytesOfTheOtherTiles) {
  for (const std::pair<int, bool>& head : kHeads) {
    const int dim = head.first;
    const bool bf16 = head.second;  // no bindings: Clang 14 does not capture them
    for (const int tokens : {65, 129, 300}) {
      SCOPED_TRACE(std::to_string(dim) + " columns, bf16 " + std::to_string(bf16) + ", " + std::to_string(tokens) +
                   " tokens");
      for (const AttentionPattern& pattern :
           {AttentionPattern(AllPairs{false}), AttentionPattern(AllPairs{true}),
            AttentionPattern(EverySecondRun(tokens, 0, false)), AttentionPattern(EverySecondRun(tokens, 0, true))}) {
        Case made(Shape{.lengths = {tokens, 70}, .heads = 1, .head_dim = dim});
        made.AddProblems(AllPairs{false});
        made.problems[0].pattern = pattern;
        const std::vector<float> want = TilesCall(made, bf16).Run();
        const auto check = [&] { EXPECT_TRUE(SameBytes(AttendOnDevice(made, bf16), want)); };
        tokens == 300 && dim == 64 ? InEveryOrder(check) : check();
      }
    }
  }
}

// 50 queries of two heads are 100 rows.
TEST(AttentionWideTest, TakesHeadsThatShareKeysTogether) {
  for (const auto& [dim, bf16] : kHeads) {
    Case made(Shape{.lengths = {50, 140}, .heads = 6, .key_value_heads = 2, .head_dim = dim});
    made.AddProblems(AllPairs{true});
    EXPECT_TRUE(SameBytes(AttendOnDevice(made, bf16), TilesCall(made, bf16).Run())) << dim << bf16;
  }
}

// A window's graph never goes to the wide kernels.
TEST(AttentionWideTest, TakesWindowsFromTheirFirstTileOn) {
  for (const auto& [dim, bf16] : kHeads) {
    for (const bool causal : {false, true}) {
      Case made(Shape{.lengths = {700}, .heads = 2, .key_value_heads = 1, .head_dim = dim});
      made.inputs.runs_as_windows = true;
      const AllPairs window = {causal, 100};
      made.AddProblems(window);
      const std::vector<float> got = AttendOnDevice(made, bf16);
      HeadEdges edges;
      edges.row_offsets = {0};
      for (int32_t query = 0; query < 700; ++query) {
        const KeyRun run = KeysOf(window, nullptr, 700, query);
        for (int32_t key = run.begin; key < run.end; ++key) edges.keys.push_back(key);
        edges.row_offsets.push_back(static_cast<int64_t>(edges.keys.size()));
      }
      const std::vector<HeadEdges> heads(2, edges);
      made.problems[0].pattern = ExplicitEdges{&heads, true};
      EXPECT_TRUE(SameBytes(got, AttendOnDevice(made, bf16))) << dim << bf16 << causal;
    }
  }
}

TEST(AttentionWideTest, GivesZerosWithoutKeys) {
  for (const auto& [dim, bf16] : kHeads) {
    Case made(Shape{.lengths = {200}, .heads = 1, .head_dim = dim});
    GroupedKeys groups;
    groups.group_begin = {0, 100, 200};
    groups.keys = {0};
    groups.key_offsets = {0, 0, 1};
    made.AddProblems(groups);
    const std::vector<float> out = AttendOnDevice(made, bf16);
    EXPECT_THAT(std::span(out).first(static_cast<size_t>(100 * dim)), ::testing::Each(0.0f));
    EXPECT_NE(out[static_cast<size_t>(100 * dim)], 0.0f);
  }
}

TEST(AttentionWideTest, TakesLateQueriesAndWritesNoOthers) {
  for (const bool bf16 : {false, true}) {
    Case made(Shape{.lengths = {400}, .heads = 1, .head_dim = 64});
    made.AddProblems(AllPairs{true});
    made.problems[0].first_query = 90;
    made.out_rows = 330;
    made.problems[0].out_row = 10;
    EXPECT_TRUE(SameBytes(AttendOnDevice(made, bf16), TilesCall(made, bf16).Run()));
  }
}

// The last tile's keys end before those of the next sequence, which lie behind them.
TEST(AttentionWideTest, ReadsNothingOfOtherSequences) {
  for (const auto& [dim, bf16] : kHeads) {
    Case made(Shape{.lengths = {150, 100}, .heads = 2, .head_dim = dim});
    made.AddProblems(AllPairs{});
    const std::vector<float> want = AttendOnDevice(made, bf16);
    EXPECT_TRUE(std::isfinite(want[0]));
    made.problems[1].tokens = 1;
    for (int64_t row = 150; row < 250; ++row) {
      for (int64_t c = 0; c < made.inputs.v.columns; ++c) {
        const_cast<float*>(made.inputs.k.row(row))[c] = std::numeric_limits<float>::quiet_NaN();
        const_cast<float*>(made.inputs.v.row(row))[c] = std::numeric_limits<float>::infinity();
      }
    }
    const auto first = static_cast<size_t>(150 * made.inputs.v.columns);
    const std::vector<float> got = AttendOnDevice(made, bf16);
    EXPECT_TRUE(SameBytes(std::span(got).first(first), std::span(want).first(first)));
  }
}

TEST(AttentionWideTest, HasTheBytesOfTheOtherDenseHeads) {
  for (const std::pair<int, bool>& head : kHeads) {
    const int dim = head.first;
    const bool bf16 = head.second;
    for (const int tokens : {65, 130, 200}) {
      Case made(Shape{.lengths = {tokens, 40}, .heads = 2, .head_dim = dim, .mean_rate = 0.2});
      DrawnRows drawn = Drawn(Law::kBernoulli);
      drawn.way = DrawWay::kPairs;
      made.AddProblems(drawn);
      const auto run = [&](bool wide) {
        DenseCase on_device(made, bf16);
        on_device.call.wide = wide;
        on_device.call.key_rows = made.inputs.k.rows;
        const std::vector<float> out = on_device.Attend(made);
        EXPECT_TRUE(on_device.IsDense(0, 0));
        return out;
      };
      const std::vector<float> want = run(false);
      const auto check = [&] { EXPECT_TRUE(SameBytes(run(true), want)) << tokens; };
      tokens == 200 && dim == 64 ? InEveryOrder(check) : check();
    }
  }
}

TEST(AttentionWideTest, GetsItemsOfRunsWithoutBiases) {
  const auto wide_items = [](int dim, const AttentionPattern& pattern, Phase phase, bool wide) {
    Case made(Shape{.lengths = {300}, .heads = 1, .head_dim = dim});
    made.AddProblems(pattern);
    made.inputs.phase = phase;
    const auto device = *Device::Open(0);
    std::vector<TileItem> items;
    AddTileItems(made.problems[0], 0, made.inputs, wide, device->staging(), items);
    EXPECT_TRUE(device->staging().Commit().ok());
    std::vector<int> queries;
    for (const TileItem& item : items) queries.push_back(item.queries);
    return queries;
  };
  const std::vector<int> wide = {128, 128, 44}, not_wide = {64, 64, 64, 64, 44};
  EXPECT_EQ(wide_items(64, AllPairs{true}, Phase::kPrefill, true), wide);
  EXPECT_EQ(wide_items(64, AllPairs{true}, Phase::kPrefill, false), not_wide);
  EXPECT_EQ(wide_items(64, EverySecondRun(300, 0, false), Phase::kPrefill, true), wide);
  GroupedKeys gap = EverySecondRun(300, 0, false);
  gap.keys.erase(gap.keys.begin() + 70);
  gap.key_offsets[1] = static_cast<int64_t>(gap.keys.size());
  EXPECT_EQ(wide_items(64, gap, Phase::kPrefill, true), not_wide);
}

}  // namespace
}  // namespace edgewise::cuda
