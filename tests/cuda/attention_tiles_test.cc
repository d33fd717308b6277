// The tile kernel: how queries are cut into items changes no byte, and scores that are not finite. tests/kernels
// compares it with the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/attention/kernels.h"
#include "tests/cuda/attention_tiles_case.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/attention_patterns.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::cuda::testing::TilesCall;
using ::edgewise::testing::Biases;
using ::edgewise::testing::BiasKind;
using ::edgewise::testing::Case;
using ::edgewise::testing::MakeCase;
using ::edgewise::testing::Pattern;
using ::edgewise::testing::Patterns;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;

// Of keys and of values.
constexpr std::pair<int, int> kDimensions[] = {
    {8, 8},     {16, 8},                // less than a step of 16 columns, and one
    {40, 40},   {56, 56},   {96, 40},   // not whole steps
    {64, 64},   {128, 128},             // whole steps, small and large
    {32, 48},   {8, 96},    {64, 200},  // values wider than keys
    {256, 256},                         // the widest
};

class AttentionTilesTest : public ::testing::TestWithParam<bool> {
 protected:
  std::vector<float> Run(const Case& from) { return TilesCall(from, GetParam()).Run(); }
};

INSTANTIATE_TEST_SUITE_P(Precisions, AttentionTilesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Bf16" : "Fp32"; });

// The same query in other company and at another place of its item.
TEST_P(AttentionTilesTest, ResultsDoNotDependOnHowQueriesAreCut) {
  for (const char* name : {"all", "causal", "uneven", "late", "windows-3-causal", "blocks-100"}) {
    SCOPED_TRACE(name);
    for (const Pattern& pattern : Patterns()) {
      if (pattern.name != name) continue;
      Shape shape;
      shape.lengths = {150};
      shape.value_dim = 24;
      const auto made = MakeCase(shape, pattern);
      const Biases biases(BiasKind::kDistance, *made);
      const std::vector<float> whole = Run(*made);
      for (const std::vector<int>& cuts : {std::vector<int>{1}, {7, 30, 2, 64, 16}}) {
        EXPECT_TRUE(SameBytes(whole, TilesCall(*made, GetParam(), {cuts, true}).Run()));
      }
    }
  }
}

// As block-sparse attention and generation have them: at most 16 queries, which one warp takes.
TEST_P(AttentionTilesTest, OneWarpGivesTheBytesOfSeveral) {
  for (const auto& [head_dim, value_dim] : kDimensions) {
    SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {150};
    shape.heads = 1;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.one_matrix = head_dim == value_dim;
    Case made(shape);
    made.AddProblems(AllPairs{true});
    const std::vector<float> whole = Run(made);
    for (const std::vector<int>& queries : {std::vector<int>{16}, {5}, {15, 1}, {64, 16, 30}}) {
      EXPECT_TRUE(SameBytes(whole, TilesCall(made, GetParam(), {queries, false, true}).Run())) << queries[0];
    }
  }
}

// Row 0 sees nothing, row 1 a score beyond float32, row 2 scores of -infinity alone, row 3 one of those among others.
TEST_P(AttentionTilesTest, RowsWithoutKeysGiveZerosAndInfiniteScoresNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kTokens = 130;
  Shape shape;
  shape.lengths = {kTokens};
  shape.heads = 1;
  Case made(shape);
  GroupedKeys groups;
  groups.group_begin = {0, 1, kTokens};
  for (int32_t key = 0; key < kTokens; ++key) groups.keys.push_back(key);
  groups.key_offsets = {0, 0, kTokens};
  made.AddProblems(groups);
  std::vector<float> values(kTokens * kTokens, 0.0f);
  values[kTokens + 100] = kInfinity;
  std::fill_n(values.begin() + 2 * kTokens, kTokens, -kInfinity);
  std::fill_n(values.begin() + 3 * kTokens, 70, -kInfinity);
  const PairwiseBias bias = {kTokens, values.data()};
  made.problems[0].bias = &bias;
  const std::vector<float> out = Run(made);
  const auto row = [&](int r) { return std::span(out).subspan(r * shape.head_dim, shape.head_dim); };
  for (const float value : row(0)) EXPECT_EQ(value, 0.0f);
  for (const float value : row(1)) EXPECT_TRUE(std::isnan(value));
  for (const float value : row(2)) EXPECT_TRUE(std::isnan(value));
  for (const float value : row(3)) EXPECT_TRUE(std::isfinite(value));

  std::fill_n(values.begin() + 3 * kTokens, 70, -1e30f);
  const std::vector<float> again = Run(made);
  EXPECT_TRUE(SameBytes(row(3), std::span(again).subspan(3 * shape.head_dim, shape.head_dim)));
}

TEST_P(AttentionTilesTest, RefusesDimensionsBeyond256) {
  DeviceCall call = {};
  call.head_dim = 257;
  call.value_dim = 16;
  call.num_tile_items = 1;
  EXPECT_EQ(AttendTiles(nullptr, call), cudaErrorInvalidValue);
}

// What one run of parts has no room for comes in the next ones.
TEST_P(AttentionTilesTest, RunsOfPartsGiveTheBytesOfOne) {
  Shape shape;
  shape.lengths = {700, 300, 520, 90};
  Case made(shape);
  made.inputs.phase = Phase::kDecode;
  made.AddProblems(AllPairs{true});
  for (AttentionProblem& problem : made.problems) problem.first_query = problem.tokens - 40;
  const auto device = *Device::Open(0);
  const auto run = [&](int64_t most_part_floats) {
    std::vector<float> out(static_cast<size_t>(made.out_rows * made.inputs.v.columns), TilesCall::kUnwritten);
    Attention attention(*device, GetParam(), most_part_floats);
    EXPECT_TRUE(
        attention.Attend(made.inputs, made.problems, {}, Matrix(out.data(), made.out_rows, made.inputs.v.columns))
            .ok());
    EXPECT_TRUE(attention.Collect({}).ok());
    return out;
  };
  const std::vector<float> whole = run(kMostPartFloats);
  EXPECT_TRUE(SameBytes(run(2000), whole));
  EXPECT_TRUE(SameBytes(run(1), whole));
}

std::vector<TileItem> ItemsOf(Case& made, const AllPairs& pairs, int32_t first_query) {
  made.AddProblems(pairs);
  made.problems[0].first_query = first_query;
  const auto device = *Device::Open(0);
  std::vector<TileItem> items;
  AddTileItems(made.problems[0], 0, made.inputs, false, device->staging(), items);
  EXPECT_TRUE(device->staging().Commit().ok());
  return items;
}

// In steps of generation a query is all that a head has: without this, each of its group would read the keys again.
TEST(AddTileItemsTest, HeadsThatShareKeysShareTheItemsOfFewQueries) {
  for (const auto& [queries, items, of_first] : {std::tuple(1, 2, 6), {4, 4, 4}, {5, 6, 6}, {16, 16, 1}}) {
    Shape shape;
    shape.lengths = {100};
    shape.heads = 12;
    shape.key_value_heads = 2;
    Case made(shape);
    made.inputs.phase = Phase::kDecode;
    const std::vector<TileItem> got = ItemsOf(made, AllPairs{true}, 100 - queries);
    EXPECT_EQ(std::ssize(got), items) << queries;
    EXPECT_EQ(got[0].heads, of_first) << queries;
    int32_t rows = 0;
    for (const TileItem& item : got) {
      EXPECT_LE(RowsOf(item), kWarpQueries);
      EXPECT_EQ(item.head / 6, (item.head + item.heads - 1) / 6) << "they share their keys";
      rows += RowsOf(item);
    }
    EXPECT_EQ(rows, 12 * queries);
  }
}

TEST(AddTileItemsTest, AWindowIsReadFromItsFirstKeyOn) {
  Shape shape;
  shape.lengths = {1000};
  shape.heads = 1;
  Case made(shape);
  made.inputs.phase = Phase::kDecode;
  for (const auto& [reach, parts] : {std::pair(100, 1), {300, 2}, {999, 4}}) {
    made.problems.clear();
    const std::vector<TileItem> items = ItemsOf(made, AllPairs{true, reach}, 999);
    ASSERT_EQ(items.size(), 1u);
    EXPECT_EQ(items[0].first_key, 999 - reach);
    EXPECT_EQ(items[0].num_keys, 1000);
    EXPECT_EQ(PartsOf(items[0]), parts);
  }
}

TEST(OrderTileItemsTest, FewQueriesGoToOneWarpWhereTheyAreMost) {
  const auto item = [](int32_t queries, int32_t num_keys) { return TileItem{0, 0, 0, queries, num_keys}; };
  const auto shapes = [](const std::vector<TileItem>& items) {
    std::vector<std::pair<int32_t, int32_t>> of;
    for (const TileItem& one : items) of.emplace_back(one.queries, one.num_keys);
    return of;
  };
  using Shapes = std::vector<std::pair<int32_t, int32_t>>;
  std::vector<TileItem> items = {item(16, 5), item(17, 9), item(1, 300), item(64, 100), item(3, 7)};
  EXPECT_EQ(OrderTileItems(items), 3);
  EXPECT_EQ(shapes(items), (Shapes{{64, 100}, {17, 9}, {1, 300}, {3, 7}, {16, 5}}));
  items.push_back(item(20, 8));
  EXPECT_EQ(OrderTileItems(items), 0);
  EXPECT_EQ(shapes(items), (Shapes{{1, 300}, {64, 100}, {17, 9}, {20, 8}, {3, 7}, {16, 5}}));
  items = {item(16, 1)};
  EXPECT_EQ(OrderTileItems(items), 1);
  items.clear();
  EXPECT_EQ(OrderTileItems(items), 0);
}

TEST(OrderTileItemsTest, WideItemsComeFirstAndThoseOfAHeadTogether) {
  std::vector<TileItem> items = {
      {0, 0, 0, 64, 900}, {0, 0, 0, 128, 300}, {0, 1, 0, 128, 300}, {0, 0, 128, 128, 300}, {0, 1, 128, 80, 700}};
  EXPECT_EQ(OrderTileItems(items), 0);
  std::vector<std::pair<int32_t, int32_t>> order;
  for (const TileItem& item : items) order.emplace_back(item.num_keys, item.head);
  EXPECT_EQ(order, (std::vector<std::pair<int32_t, int32_t>>{{700, 1}, {300, 0}, {300, 0}, {300, 1}, {900, 0}}));
}

TEST(OrderTileItemsTest, ItemsInPartsAlwaysGoToOneWarp) {
  std::vector<TileItem> items = {{0, 0, 0, 64, 100}, {0, 0, 0, 64, 90}, {0, 0, 0, 1, 80}, {0, 0, 0, 1, 700}};
  items.back().first_part = 0;
  EXPECT_EQ(OrderTileItems(items), 1);
  EXPECT_EQ(items[2].num_keys, 80);
  EXPECT_EQ(items[3].num_keys, 700);
}

TEST(PlacePartsTest, PartsLieOneBehindTheOtherInRunsThatHaveRoom) {
  const auto item = [](int32_t queries, int32_t num_keys, bool in_parts) {
    TileItem made = {0, 0, 0, queries, num_keys};
    made.first_part = in_parts ? 0 : -1;
    return made;
  };
  // 3 rows; none; 2 * 2; 16 * 4, more than a run has; 2.
  std::vector<TileItem> items = {item(1, 3 * kPartKeys, true), item(5, 900, false), item(2, kPartKeys + 1, true),
                                 item(16, 4 * kPartKeys, true), item(1, 2 * kPartKeys, true)};
  const std::vector<NarrowRun> runs = PlaceParts(items, 7);
  ASSERT_EQ(runs.size(), 3u);
  const auto expect = [](const NarrowRun& run, int64_t begin, int64_t end, int32_t most, int64_t rows) {
    EXPECT_EQ(run.begin, begin);
    EXPECT_EQ(run.end, end);
    EXPECT_EQ(run.most_parts, most);
    EXPECT_EQ(run.part_rows, rows);
  };
  expect(runs[0], 0, 3, 3, 7);
  expect(runs[1], 3, 4, 4, 64);
  expect(runs[2], 4, 5, 2, 2);
  for (const auto& [place, first] : {std::pair(0, 0), {1, -1}, {2, 3}, {3, 0}, {4, 0}}) {
    EXPECT_EQ(items[place].first_part, first) << place;
  }
  const std::vector<NarrowRun> none = PlaceParts({}, 7);
  ASSERT_EQ(none.size(), 1u);
  expect(none[0], 0, 0, 1, 0);
}

}  // namespace
}  // namespace edgewise::cuda
