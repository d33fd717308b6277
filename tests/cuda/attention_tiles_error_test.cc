// How exact float32 tiles are, whose factors are sums of bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/cuda/attention_tiles_case.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::cuda::testing::TilesCall;
using ::edgewise::testing::Case;
using ::edgewise::testing::Shape;

// Sixteen queries of one head and all keys of a sequence.
struct LastQueries : Case {
  LastQueries(int keys, int dim, float scale_of_queries = 1.0f)
      : Case(Shape{.lengths = {keys}, .heads = 1, .head_dim = dim, .seed = static_cast<uint32_t>(keys + dim)}) {
    AddProblems(AllPairs{});
    problems[0].first_query = keys - 16;
    out_rows = 16;
    std::vector<float> queries;
    for (int row = 0; row < keys; ++row) {
      for (int c = 0; c < dim; ++c) queries.push_back(scale_of_queries * inputs.q.row(row)[c]);
    }
    rows_ = std::move(queries);
    TakeQueries(rows_);
  }
  // The error of the outputs over their size, as roots of sums of squares.
  double Error() {
    const std::vector<float> got = TilesCall(*this, false).Run();
    std::vector<float> want(got.size());
    reference::Attend(inputs, problems, {}, Matrix(want.data(), out_rows, inputs.v.columns));
    double error = 0.0, size = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double{got[i]} - want[i], 2);
      size += std::pow(double{want[i]}, 2);
    }
    return std::sqrt(error / size);
  }

 private:
  std::vector<float> rows_;
};

TEST(AttentionTilesErrorTest, IsThatOfFloat32AtAnyNumberOfKeys) {
  for (const int keys : {64, 256, 1024, 4096}) {
    for (const int dim : {16, 64, 128}) {
      LastQueries made(keys, dim);
      const double error = made.Error();
      EXPECT_LT(error, 2e-6) << keys << " keys, " << dim << " columns";
      RecordProperty(std::to_string(keys) + "x" + std::to_string(dim), std::to_string(error * 1e6));
    }
  }
}

// A score's own error is 2^-23 of it, and of a weight that much times the score.
TEST(AttentionTilesErrorTest, GrowsWithTheScoresAlone) {
  for (const float large : {10.0f, 100.0f, 1e4f}) {
    LastQueries made(256, 64, large);
    EXPECT_LT(made.Error(), 2e-6 * large);
  }
}

// Scores of which no difference is small beside their rounding: the largest has all the weight.
TEST(AttentionTilesErrorTest, HugeScoresChooseOneKey) {
  for (const float large : {1e12f, 1e30f, 1e36f}) {
    for (const bool bf16 : {false, true}) {
      LastQueries made(256, 64, large);
      const std::vector<float> got = TilesCall(made, bf16).Run();
      for (int row = 0; row < 16; ++row) {
        const float* const query = made.inputs.q.row(240 + row);
        int best = 0;
        double most = -std::numeric_limits<double>::infinity();
        for (int key = 0; key < 256; ++key) {
          double score = 0.0;
          for (int c = 0; c < 64; ++c) score += double{query[c]} * made.inputs.k.row(key)[c];
          if (score > most) most = score, best = key;
        }
        for (int c = 0; c < 64; ++c) {
          EXPECT_NEAR(got[row * 64 + c], made.inputs.v.row(best)[c], bf16 ? 2e-2 : 1e-6) << row;
        }
      }
    }
  }
}

// A query or a key that holds infinity or NaN.
TEST(AttentionTilesErrorTest, RowsThatAreNotFiniteAreNan) {
  for (const bool bf16 : {false, true}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      LastQueries made(96, 64);
      const_cast<float*>(made.inputs.q.row(83))[5] = bad;
      const std::vector<float> got = TilesCall(made, bf16).Run();
      for (int row = 0; row < 16; ++row) EXPECT_EQ(std::isnan(got[row * 64 + 7]), row == 3) << row;
      const_cast<float*>(made.inputs.k.row(10))[0] = std::numeric_limits<float>::quiet_NaN();
      for (const float out : TilesCall(made, bf16).Run()) EXPECT_TRUE(std::isnan(out));
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
