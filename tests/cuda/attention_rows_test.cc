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
HeadEdges RandomEdges(int32_t degree, uint32_t seed, uint32_t others, int32_t only) {
  HeadEdges head;
  head.row_offsets = {0};
  for (int32_t query = 0; query < kTokens; ++query) {
    const bool own = query == only || only < 0;
    std::mt19937 random((own ? seed : others) * 1000 + static_cast<uint32_t>(query));
    std::set<int32_t> keys;
    const auto count = static_cast<size_t>(own ? degree : static_cast<int32_t>(random() % 30));
    while (keys.size() < count) keys.insert(static_cast<int32_t>(random() % kTokens));
    head.keys.insert(head.keys.end(), keys.begin(), keys.end());
    head.row_offsets.push_back(static_cast<int64_t>(head.keys.size()));
  }
  return head;
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
    for (const int dim : {16, 72}) {
      Rows rows(dim, dim);
      for (const int32_t degree : {0, 1, 16, 17, 33}) {
        const std::vector<float> all = rows.Attend(RandomEdges(degree, 1, 1, -1), bf16);
        for (const int32_t row : {0, 5, 32, 699}) {
          const std::vector<float> among = rows.Attend(RandomEdges(degree, 1, 2, row), bf16);
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

TEST(AttentionRowsTest, ValuesThatAreNotFiniteChangeTheRowsThatAttendToThemAlone) {
  for (const bool bf16 : {false, true}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Rows rows(64, 64);
      const HeadEdges edges = RandomEdges(9, 4, 4, -1);
      const std::vector<float> want = rows.Attend(edges, bf16);
      const int32_t key = edges.keys[edges.row_offsets[19]];
      const_cast<float*>(rows.made->inputs.v.row(key))[7] = bad;
      const std::vector<float> got = rows.Attend(edges, bf16);
      for (int32_t row = 0; row < kTokens; ++row) {
        const auto begin = edges.keys.begin() + edges.row_offsets[row],
                   end = edges.keys.begin() + edges.row_offsets[row + 1];
        const bool attends = std::find(begin, end, key) != end;
        for (size_t c = 0; c < rows.columns; ++c) {
          const float value = rows.RowOf(got, row)[c], other = rows.RowOf(want, row)[c];
          if (attends && c == 7) {
            EXPECT_FALSE(std::isfinite(value)) << row;
          } else {
            EXPECT_EQ(value, other) << row << " " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
