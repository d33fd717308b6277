// The operations that go row by row, on every device: right for odd sizes and strides, and a row depends on nothing
// beside it.
#include <cmath>

#include "kernels/reference/reference.h"
#include "tests/kernels/device_matrix.h"

namespace edgewise {
namespace {

using testing::DeviceMatrix;
using testing::Place;
using testing::Random;
using testing::RowsOf;

class RowsTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, RowsTest);

struct RowShape {
  int64_t rows, columns, stride, shift;
};
const RowShape kRowShapes[] = {
    {0, 8, 8, 0},                        // nothing
    {1, 1, 1, 0},     {1, 3, 3, 0},      // fewer columns than a vector
    {9, 3, 7, 0},     {17, 64, 64, 0},   // and strided; whole vectors
    {5, 257, 257, 0}, {8, 132, 132, 0},  // a tail; more than one round of a warp
    {6, 64, 65, 0},   {6, 64, 72, 1},    // strides and starts that are not 16-byte aligned,
    {6, 64, 72, 4},                      // and some that are
    {130, 48, 48, 0},                    // more than the 64 rows of a CPU's item of work
};

TEST_P(RowsTest, Embed) {
  for (const RowShape s : kRowShapes) {
    const auto word = Random(11 * s.columns, 1), position = Random(140 * s.columns, 2);
    std::vector<int32_t> ids, places;
    for (int64_t r = 0; r < s.rows; ++r) {
      ids.push_back(static_cast<int32_t>(r * 5 % 11));
      places.push_back(static_cast<int32_t>(139 - r));
    }
    const DeviceMatrix words(*backend_, word, 11, s.columns), positions(*backend_, position, 140, s.columns);
    for (const bool with_position : {false, true}) {
      const DeviceMatrix y(*backend_, Random(s.rows * s.columns, 3), s.rows, s.columns, s.stride, s.shift);
      ASSERT_TRUE(backend_
                      ->Embed(words.view(), with_position ? ConstMatrix(positions.view()) : ConstMatrix(), ids,
                              with_position ? places : std::vector<int32_t>(), y.view())
                      .ok());
      std::vector<float> want;
      for (int64_t i = 0; i < s.rows * s.columns; ++i) {
        const float token = word[ids[i / s.columns] * s.columns + i % s.columns];
        const float place = position[places[i / s.columns] * s.columns + i % s.columns];
        want.push_back(with_position ? token + place : token);
      }
      EXPECT_EQ(y.Host(), want);
    }
  }
}

TEST_P(RowsTest, LayerNorm) {
  for (const RowShape s : kRowShapes) {
    auto x = Random(s.rows * s.columns, 1);
    for (float& value : x) value += 10.0f;
    const auto weight = Random(s.columns, 2), bias = Random(s.columns, 3);
    std::vector<float> expected(x.size());
    reference::LayerNorm({x.data(), s.rows, s.columns}, weight.data(), bias.data(), 1e-5f,
                         {expected.data(), s.rows, s.columns});
    const Buffer w = Place(*backend_, weight), b = Place(*backend_, bias);
    const auto norm = [&](ConstMatrix from, Matrix to) {
      ASSERT_TRUE(backend_->LayerNorm(from, w.data(), b.data(), 1e-5f, to).ok());
    };
    const DeviceMatrix given(*backend_, x, s.rows, s.columns, s.stride, s.shift), y(*backend_, x, s.rows, s.columns);
    norm(given.view(), y.view());
    const auto result = y.Host();
    EXPECT_LE(testing::LargestDifference(result, expected), 2e-5) << s.columns;

    // In place, one row at a time, and from memory aligned otherwise: the same bytes.
    norm(given.view(), given.view());
    EXPECT_EQ(given.Host(), result);
    for (int64_t r = 0; r < s.rows; ++r) {
      const DeviceMatrix alone(*backend_, RowsOf(x, s.columns, r, 1), 1, s.columns, s.columns, r % 5);
      norm(alone.view(), alone.view());
      ASSERT_EQ(alone.Host(), RowsOf(result, s.columns, r, 1));
    }
  }
}

TEST_P(RowsTest, GatherRows) {
  for (const RowShape s : kRowShapes) {
    const auto x = Random(s.rows * s.columns, 1);
    const DeviceMatrix source(*backend_, x, s.rows, s.columns, s.stride, s.shift);
    std::vector<int64_t> rows;
    std::vector<float> want;
    for (int64_t r = 0; r < 13 && s.rows > 0; ++r) {
      rows.push_back(r * 7 % s.rows);
      want.insert(want.end(), x.begin() + rows.back() * s.columns, x.begin() + (rows.back() + 1) * s.columns);
    }
    const auto count = static_cast<int64_t>(rows.size());
    const DeviceMatrix y(*backend_, Random(count * s.columns, 2), count, s.columns, s.stride + 1);
    ASSERT_TRUE(backend_->GatherRows(source.view(), rows, y.view()).ok());
    EXPECT_EQ(y.Host(), want);
  }
}

TEST_P(RowsTest, PoolMean) {
  for (const int64_t columns : {1, 3, 64, 257}) {  // less than a vector; vectors; a tail
    const auto x = Random(150 * columns, 1);
    const DeviceMatrix source(*backend_, x, 150, columns, columns + 3);
    const std::vector<int64_t> offsets = {0, 1, 1, 140, 150};  // one row, none, many, few
    const std::vector<float> divisors = {1.0f, 3.0f, 139.0f, 7.5f};
    const DeviceMatrix y(*backend_, Random(4 * columns, 2), 4, columns, columns + 1);
    ASSERT_TRUE(backend_->PoolMean(source.view(), offsets, divisors, y.view()).ok());
    const auto result = y.Host();
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 0.0;
        for (int64_t r = offsets[s]; r < offsets[s + 1]; ++r) sum += x[r * columns + c];
        ASSERT_NEAR(result[s * columns + c], sum / divisors[s], 1e-6);
      }
    }
    // The third sequence alone, and no sequence at all.
    const DeviceMatrix alone(*backend_, Random(columns, 2), 1, columns);
    const ConstMatrix third = ConstMatrix(source.view()).Rows(1, 139);
    ASSERT_TRUE(backend_->PoolMean(third, std::vector<int64_t>{0, 139}, std::vector<float>{139.0f}, alone.view()).ok());
    EXPECT_EQ(alone.Host(), RowsOf(result, columns, 2, 1));
    EXPECT_TRUE(backend_->PoolMean(third, std::vector<int64_t>{0}, {}, Matrix(nullptr, 0, columns)).ok());
  }
}

TEST_P(RowsTest, PairFeatures) {
  for (const RowShape s : kRowShapes) {
    const auto a = Random(s.rows * s.columns, 1), b = Random(s.rows * s.columns, 2);
    const DeviceMatrix x0(*backend_, a, s.rows, s.columns, s.stride, s.shift), x1(*backend_, b, s.rows, s.columns);
    const DeviceMatrix y(*backend_, Random(4 * s.rows * s.columns, 3), s.rows, 4 * s.columns, 4 * s.columns + 2);
    ASSERT_TRUE(backend_->PairFeatures(x0.view(), x1.view(), y.view()).ok());
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

}  // namespace
}  // namespace edgewise
