// The row kernel: a row has its bytes whatever its neighbours attend to, and values that are not finite reach the rows
// that attend to them alone. tests/kernels compares it with the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/attention_dense_case.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::DenseCase;

constexpr int32_t kTokens = 700;

// So many keys of every query, or of `only` the same and of others as many as `others` has.
HeadEdges RandomEdges(int32_t tokens, int32_t degree, uint32_t seed, uint32_t others, int32_t only) {
  HeadEdges head;
  head.row_offsets = {0};
  for (int32_t query = 0; query < tokens; ++query) {
    const bool own = query == only || only < 0;
    std::mt19937 random((own ? seed : others) * 1000 + static_cast<uint32_t>(query));
    std::set<int32_t> keys;
    const auto count = static_cast<size_t>(own ? degree : static_cast<int32_t>(random() % 30));
    while (keys.size() < count) keys.insert(static_cast<int32_t>(random() % static_cast<uint32_t>(tokens)));
    head.keys.insert(head.keys.end(), keys.begin(), keys.end());
    head.row_offsets.push_back(static_cast<int64_t>(head.keys.size()));
  }
  return head;
}

bool Attends(const HeadEdges& edges, int32_t query, int32_t key) {
  const auto end = edges.keys.begin() + edges.row_offsets[query + 1];
  return std::find(edges.keys.begin() + edges.row_offsets[query], end, key) != end;
}

struct Rows {
  explicit Rows(int head_dim, int value_dim) : columns(value_dim) {
    Shape shape;
    shape.lengths = {kTokens};
    shape.heads = 1;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    made = std::make_unique<Case>(shape);
    made->AddProblems(AllPairs{});
  }
  std::vector<float> Attend(HeadEdges edges, bool bf16) {
    const std::vector<HeadEdges> heads = {std::move(edges)};
    made->problems[0].pattern = ExplicitEdges{.heads = &heads};
    DenseCase device(*made, bf16);
    EXPECT_EQ(device.call.num_dense_items, 0);
    return device.Attend(*made);
  }
  std::span<const float> RowOf(const std::vector<float>& out, int32_t row) const {
    return std::span(out).subspan(static_cast<size_t>(row) * columns, columns);
  }

  size_t columns;
  std::unique_ptr<Case> made;
};

TEST(AttentionRowsTest, ARowHasItsBytesWhateverItsNeighboursAttendTo) {
  for (const bool bf16 : {false, true}) {
    for (const int dim : {16, 72, 136}) {
      Rows rows(dim, dim);
      for (const int32_t degree : {0, 1, 16, 33}) {
        const std::vector<float> all = rows.Attend(RandomEdges(kTokens, degree, 1, 1, -1), bf16);
        for (const int32_t row : {0, 5, 699}) {
          const std::vector<float> among = rows.Attend(RandomEdges(kTokens, degree, 1, 2, row), bf16);
          EXPECT_TRUE(SameBytes(rows.RowOf(among, row), rows.RowOf(all, row))) << dim << " " << degree << " " << row;
        }
      }
    }
  }
}

// Long rows are taken in steps; a row of one degree has the keys of a step and some more.
TEST(AttentionRowsTest, LongRowsAreTheSumOfTheirEdges) {
  Rows rows(40, 72);
  HeadEdges edges;
  edges.row_offsets.assign(kTokens + 1, 0);
  for (int32_t key = 0; key < kTokens; ++key) edges.keys.push_back(key);
  for (int32_t query = 3; query < kTokens; ++query) edges.row_offsets[query + 1] = kTokens;  // of query 3 alone
  const std::vector<float> fp32 = rows.Attend(edges, false), bf16 = rows.Attend(edges, true);
  const std::span<const float> want = rows.RowOf(fp32, 3), got = rows.RowOf(bf16, 3);
  for (size_t c = 0; c < rows.columns; ++c) EXPECT_NEAR(got[c], want[c], 2e-2 * std::abs(want[c]) + 2e-3);
  EXPECT_TRUE(std::all_of(bf16.begin(), bf16.begin() + 3 * static_cast<int64_t>(rows.columns),
                          [](float value) { return value == 0.0f; }));
}

// Rows and dense heads, drawn and given.
TEST(AttentionRowsTest, KeysAndValuesSideBySideGiveTheBytesOfThoseApart) {
  constexpr int kWidths[][2] = {{16, 16}, {40, 24}, {64, 64}, {72, 128}, {24, 136}};
  for (const auto& [head_dim, value_dim] : kWidths) {
    SCOPED_TRACE(std::to_string(head_dim) + ", " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {37, 70, 90};
    shape.heads = 3;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    Case made(shape);
    made.AddProblems(testing::Drawn(Law::kBernoulli));
    made.problems[1].pattern = DrawnRows{.way = DrawWay::kEvents};
    std::vector<HeadEdges> heads;
    for (uint32_t head = 0; head < 3; ++head) heads.push_back(RandomEdges(70, head == 1 ? 30 : 2, head, 9, -1));
    made.problems[2].pattern = ExplicitEdges{.heads = &heads};
    made.problems[2].tokens = 70;
    DenseCase apart(made, true), beside(made, true, {}, true);
    const std::vector<float> want = apart.Attend(made);
    EXPECT_TRUE(SameBytes(beside.Attend(made), want));
    EXPECT_GT(apart.call.num_dense_items, 0);
    EXPECT_TRUE(std::any_of(want.begin(), want.end(), [](float value) { return value != 0.0f; }));
  }
}

TEST(AttentionRowsTest, ValuesThatAreNotFiniteChangeTheRowsThatAttendToThemAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kWidths[][2] = {{64, 64}, {40, 72}, {16, 136}};
  for (const auto& [head_dim, value_dim] : kWidths) {
    for (const bool bf16 : {false, true}) {
      for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        Rows rows(head_dim, value_dim);
        const HeadEdges edges = RandomEdges(kTokens, 9, 4, 4, -1);
        const std::vector<float> want = rows.Attend(edges, bf16);
        const int32_t key = edges.keys[edges.row_offsets[19]];
        const std::set<size_t> columns = {7, 12, static_cast<size_t>(value_dim) - 6};
        for (const size_t c : columns) const_cast<float*>(rows.made->inputs.v.row(key))[c] = bad;
        const std::vector<float> got = rows.Attend(edges, bf16);
        for (int32_t row = 0; row < kTokens; ++row) {
          const bool attends = Attends(edges, row, key);
          for (size_t c = 0; c < rows.columns; ++c) {
            const float value = rows.RowOf(got, row)[c], other = rows.RowOf(want, row)[c];
            if (attends && columns.contains(c)) {
              EXPECT_FALSE(std::isfinite(value)) << row << " " << c;
            } else {
              EXPECT_EQ(value, other) << row << " " << c;
            }
          }
        }
      }
    }
  }
}

// A column of a key is not finite, the last that threads read again in place of columns that there are not.
TEST(AttentionRowsTest, AKeyWhoseScoreIsMinusInfinityWeighsNothing) {
  for (const int dim : {64, 40, 136}) {
    for (const bool bf16 : {false, true}) {
      Rows rows(dim, 16);
      const HeadEdges edges = RandomEdges(kTokens, 33, 4, 4, -1);
      const int32_t key = edges.keys[edges.row_offsets[19]];
      float& last = const_cast<float*>(rows.made->inputs.k.row(key))[dim - 1];
      const auto attend = [&](float value) {
        last = value;
        return rows.Attend(edges, bf16);
      };
      const std::vector<float> got = attend(-std::numeric_limits<float>::infinity()), want = attend(-3e38f);
      int finite = 0, nan = 0;
      for (int32_t row = 0; row < kTokens; ++row) {
        if (!Attends(edges, row, key)) continue;
        const bool weighs = rows.made->inputs.q.row(row)[dim - 1] < 0.0f;
        ++(weighs ? nan : finite);
        for (size_t c = 0; c < rows.columns; ++c) {
          const float value = rows.RowOf(got, row)[c];
          if (weighs) {
            EXPECT_TRUE(std::isnan(value)) << row << " " << c;
          } else {
            EXPECT_EQ(value, rows.RowOf(want, row)[c]) << row << " " << c;
          }
        }
      }
      EXPECT_GT(finite, 0);
      EXPECT_GT(nan, 0);
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
