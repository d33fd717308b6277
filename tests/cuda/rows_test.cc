// The kernels that go row by row: right for odd sizes and strides, and a row depends on nothing beside it.
#include "kernels/cuda/ops/rows.h"

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/reference.h"
#include "tests/cuda/device_data.h"

namespace edgewise::cuda {
namespace {

using RowsTest = OrderTest;
INSTANTIATE_TEST_SUITE_P(Orders, RowsTest, AllOrders());

struct Shape {
  int64_t rows, columns, stride, shift;
};
const Shape kShapes[] = {
    {1, 1, 1, 0},    {1, 3, 3, 0},     {9, 3, 7, 0},      // fewer columns than a vector
    {17, 64, 64, 0}, {5, 257, 257, 0}, {8, 132, 132, 0},  // vectors; a tail; more than one round of a warp
    {6, 64, 65, 0},  {6, 64, 72, 1},   {6, 64, 72, 4},  // strides and starts that are not 16-byte aligned, and some are
};

TEST_P(RowsTest, Embed) {
  for (const Shape s : kShapes) {
    const auto word = Random(11 * s.columns, 1), position = Random(20 * s.columns, 2);
    std::vector<int32_t> ids(s.rows), places(s.rows);
    for (int64_t r = 0; r < s.rows; ++r)
      ids[r] = static_cast<int32_t>(r * 5 % 11), places[r] = static_cast<int32_t>(19 - r);
    const DeviceMatrix words(device_, word, 11, s.columns), positions(device_, position, 20, s.columns);
    const DeviceCopy<int32_t> device_ids(device_, ids), device_places(device_, places);
    for (const bool with_position : {false, true}) {
      const DeviceMatrix y(device_, Random(s.rows * s.columns, 3), s.rows, s.columns, s.stride, s.shift);
      ASSERT_EQ(Embed(stream(), words.view(), with_position ? ConstMatrix(positions.view()) : ConstMatrix(),
                      device_ids.data(), with_position ? device_places.data() : nullptr, y.view()),
                cudaSuccess);
      const auto result = y.Host();
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t c = 0; c < s.columns; ++c) {
          const float token = word[ids[r] * s.columns + c];
          ASSERT_EQ(result[r * s.columns + c], with_position ? token + position[places[r] * s.columns + c] : token);
        }
      }
    }
  }
}

TEST_P(RowsTest, LayerNorm) {
  for (const Shape s : kShapes) {
    auto x = Random(s.rows * s.columns, 1);
    for (float& value : x) value += 10.0f;
    const auto weight = Random(s.columns, 2), bias = Random(s.columns, 3);
    std::vector<float> expected(x.size());
    reference::LayerNorm({x.data(), s.rows, s.columns}, weight.data(), bias.data(), 1e-5f,
                         {expected.data(), s.rows, s.columns});
    const DeviceCopy<float> w(device_, weight), b(device_, bias);
    const DeviceMatrix given(device_, x, s.rows, s.columns, s.stride, s.shift), y(device_, x, s.rows, s.columns);
    ASSERT_EQ(LayerNorm(stream(), given.view(), w.data(), b.data(), 1e-5f, y.view()), cudaSuccess);
    const auto result = y.Host();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(result[i], expected[i], 2e-5) << s.columns;

    // In place, one row at a time, and from memory aligned otherwise: the same bytes.
    ASSERT_EQ(LayerNorm(stream(), given.view(), w.data(), b.data(), 1e-5f, given.view()), cudaSuccess);
    EXPECT_EQ(given.Host(), result);
    for (int64_t r = 0; r < s.rows; ++r) {
      const std::vector<float> row(x.begin() + r * s.columns, x.begin() + (r + 1) * s.columns);
      const DeviceMatrix alone(device_, row, 1, s.columns, s.columns, r % 5);
      ASSERT_EQ(LayerNorm(stream(), alone.view(), w.data(), b.data(), 1e-5f, alone.view()), cudaSuccess);
      ASSERT_EQ(alone.Host(), std::vector<float>(result.begin() + r * s.columns, result.begin() + (r + 1) * s.columns));
    }
  }
}

TEST_P(RowsTest, GatherRows) {
  for (const Shape s : kShapes) {
    const auto x = Random(s.rows * s.columns, 1);
    const DeviceMatrix source(device_, x, s.rows, s.columns, s.stride, s.shift);
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < 13; ++r) rows.push_back(r * 7 % s.rows);
    const DeviceCopy<int64_t> device_rows(device_, rows);
    const DeviceMatrix y(device_, Random(13 * s.columns, 2), 13, s.columns, s.stride + 1);
    ASSERT_EQ(GatherRows(stream(), source.view(), device_rows.data(), y.view()), cudaSuccess);
    const auto result = y.Host();
    for (int64_t i = 0; i < 13 * s.columns; ++i) {
      ASSERT_EQ(result[i], x[rows[i / s.columns] * s.columns + i % s.columns]);
    }
  }
}

TEST_P(RowsTest, PoolMean) {
  for (const int64_t columns : {1, 3, 64, 257}) {
    const int64_t rows = 150;
    const auto x = Random(rows * columns, 1);
    const DeviceMatrix source(device_, x, rows, columns, columns + 3);
    const std::vector<int64_t> offsets = {0, 1, 1, 140, 150};  // one row, none, many, few
    const std::vector<float> divisors = {1.0f, 3.0f, 139.0f, 7.5f};
    const DeviceCopy<int64_t> device_offsets(device_, offsets);
    const DeviceCopy<float> device_divisors(device_, divisors);
    const DeviceMatrix y(device_, Random(4 * columns, 2), 4, columns, columns + 1);
    ASSERT_EQ(PoolMean(stream(), source.view(), device_offsets.data(), device_divisors.data(), y.view()), cudaSuccess);
    const auto result = y.Host();
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 0.0;
        for (int64_t r = offsets[s]; r < offsets[s + 1]; ++r) sum += x[r * columns + c];
        ASSERT_NEAR(result[s * columns + c], sum / divisors[s], 1e-6);
      }
    }
    // The third sequence alone.
    const DeviceCopy<int64_t> alone_offsets(device_, std::vector<int64_t>{0, 139});
    const DeviceCopy<float> alone_divisor(device_, std::vector<float>{139.0f});
    const DeviceMatrix alone(device_, Random(columns, 2), 1, columns);
    ASSERT_EQ(PoolMean(stream(), ConstMatrix(source.view()).Rows(1, 139), alone_offsets.data(), alone_divisor.data(),
                       alone.view()),
              cudaSuccess);
    EXPECT_EQ(alone.Host(), std::vector<float>(result.begin() + 2 * columns, result.begin() + 3 * columns));
  }
}

TEST_P(RowsTest, PairFeatures) {
  for (const Shape s : kShapes) {
    const auto a = Random(s.rows * s.columns, 1), b = Random(s.rows * s.columns, 2);
    const DeviceMatrix x0(device_, a, s.rows, s.columns, s.stride, s.shift), x1(device_, b, s.rows, s.columns);
    const DeviceMatrix y(device_, Random(4 * s.rows * s.columns, 3), s.rows, 4 * s.columns, 4 * s.columns + 2);
    ASSERT_EQ(PairFeatures(stream(), x0.view(), x1.view(), y.view()), cudaSuccess);
    const auto result = y.Host();
    for (int64_t i = 0; i < s.rows * s.columns; ++i) {
      const float* out = result.data() + i / s.columns * 4 * s.columns + i % s.columns;
      ASSERT_EQ(out[0], a[i]);
      ASSERT_EQ(out[s.columns], b[i]);
      ASSERT_EQ(out[2 * s.columns], a[i] * b[i]);
      ASSERT_EQ(out[3 * s.columns], a[i] - b[i]);
    }
  }
}

TEST_P(RowsTest, FinishProduct) {
  for (const Shape s : kShapes) {
    const auto product = Random(s.rows * s.columns, 1), bias = Random(s.columns, 2), before = Random(product.size(), 3);
    const DeviceCopy<float> b(device_, bias);
    for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
      for (const bool with_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const DeviceMatrix source(device_, product, s.rows, s.columns, s.stride, s.shift);
          const DeviceMatrix y(device_, before, s.rows, s.columns, s.columns + 4);
          ASSERT_EQ(
              FinishProduct(stream(), source.view(), with_bias ? b.data() : nullptr, activation, accumulate, y.view()),
              cudaSuccess);
          const auto result = y.Host();
          for (size_t i = 0; i < result.size(); ++i) {
            double value = product[i];
            if (accumulate) value += before[i];
            if (with_bias) value += bias[i % s.columns];
            if (!accumulate && activation == Activation::kRelu) value = std::max(value, 0.0);
            if (!accumulate && activation == Activation::kGelu)
              value = 0.5 * value * (1.0 + std::erf(value / std::sqrt(2.0)));
            ASSERT_NEAR(result[i], value, 1e-6);
          }
        }
      }
    }
  }
}

float Rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

TEST_P(RowsTest, RoundRowsAndPadding) {
  for (const Shape s : kShapes) {
    const auto x = Random(s.rows * s.columns, 1);
    const DeviceMatrix source(device_, x, s.rows, s.columns, s.stride, s.shift);
    const DeviceCopy<__nv_bfloat16> rounded(device_, std::vector<__nv_bfloat16>(x.size()));
    ASSERT_EQ(RoundRows(stream(), source.view().data, s.stride, s.rows, s.columns, rounded.data()), cudaSuccess);
    const auto result = rounded.Host();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(__bfloat162float(result[i]), Rounded(x[i]));

    const int64_t wide = (s.columns + 7) / 8 * 8;
    const DeviceCopy<float> padded(device_, std::vector<float>(s.rows * wide, kUntouched));
    const DeviceCopy<__nv_bfloat16> padded16(device_, std::vector<__nv_bfloat16>(s.rows * wide));
    ASSERT_EQ(PadRows(stream(), source.view(), padded.data(), wide), cudaSuccess);
    ASSERT_EQ(PadRoundRows(stream(), source.view(), padded16.data(), wide), cudaSuccess);
    const auto floats = padded.Host();
    const auto halves = padded16.Host();
    for (int64_t i = 0; i < s.rows * wide; ++i) {
      const float value = i % wide < s.columns ? x[i / wide * s.columns + i % wide] : 0.0f;
      ASSERT_EQ(floats[i], value);
      ASSERT_EQ(__bfloat162float(halves[i]), Rounded(value));
    }
  }
}

TEST_P(RowsTest, NoRowsAreNoLaunch) {
  const Matrix none(nullptr, 0, 8);
  EXPECT_EQ(Embed(stream(), none, {}, nullptr, nullptr, none), cudaSuccess);
  EXPECT_EQ(LayerNorm(stream(), none, nullptr, nullptr, 1e-5f, none), cudaSuccess);
  EXPECT_EQ(GatherRows(stream(), none, nullptr, none), cudaSuccess);
  EXPECT_EQ(PoolMean(stream(), none, nullptr, nullptr, none), cudaSuccess);
}

}  // namespace
}  // namespace edgewise::cuda
