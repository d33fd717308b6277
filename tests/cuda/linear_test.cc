// Products: right in both precisions, and a row's result depends on that row alone.
#include "kernels/cuda/ops/linear.h"

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/reference.h"
#include "tests/cuda/device_data.h"

namespace edgewise::cuda {
namespace {

class LinearTest : public OrderTest {
 protected:
  std::unique_ptr<LinearProducts> Make(bool bf16) { return *LinearProducts::Create(device_, bf16); }
};
INSTANTIATE_TEST_SUITE_P(Orders, LinearTest, AllOrders());

struct Shape {
  int64_t out, in;
};
const Shape kShapes[] = {
    {64, 64},            // whole vectors
    {1, 1},   {3, 17},   // less than a vector of anything
    {2, 256}, {9, 257},  // one more than what a warp reads at a time
    {20, 30}, {17, 136},
};
constexpr Phase kCounts[] = {Phase::kPrefill, Phase::kDecode};

std::vector<float> Rounded(std::vector<float> values) {
  for (float& value : values) value = __bfloat162float(__float2bfloat16_rn(value));
  return values;
}

TEST_P(LinearTest, AgreesWithTheReference) {
  for (const bool bf16 : {false, true}) {
    const auto products = Make(bf16);
    for (const Shape s : kShapes) {
      for (const int64_t rows : {1, 3, 13}) {
        const auto weight = Random(s.out * s.in, 1), bias = Random(s.out, 2), x = Random(rows * s.in, 3);
        const auto before = Random(rows * s.out, 4);
        for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
          for (const bool accumulate : {false, true}) {
            for (const bool with_bias : {false, true}) {
              if (accumulate && activation != Activation::kNone) continue;
              const std::span<const float> b = with_bias ? std::span<const float>(bias) : std::span<const float>();
              const auto linear = *products->Prepare(weight, b, s.out, s.in, activation);
              std::vector<float> expected = before;
              const auto seen_weight = bf16 ? Rounded(weight) : weight, seen_x = bf16 ? Rounded(x) : x;
              reference::Linear({seen_x.data(), rows, s.in}, seen_weight, b, activation, accumulate,
                                {expected.data(), rows, s.out});
              for (const Phase phase : kCounts) {
                const DeviceMatrix source(device_, x, rows, s.in), y(device_, before, rows, s.out);
                ASSERT_TRUE(products->Run(*linear, source.view(), y.view(), accumulate, phase).ok());
                const auto result = y.Host();
                for (size_t i = 0; i < result.size(); ++i) {
                  ASSERT_NEAR(result[i], expected[i], 1e-6 * s.in + 1e-5) << s.out << "x" << s.in;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowDependsOnNothingElse) {
  constexpr int64_t kRows = 21;
  for (const bool bf16 : {false, true}) {
    const auto products = Make(bf16);
    for (const Shape s : kShapes) {
      const auto weight = Random(s.out * s.in, 1), bias = Random(s.out, 2), x = Random(kRows * s.in, 3);
      for (const Phase phase : kCounts) {
        for (const bool accumulate : {false, true}) {
          const auto linear = *products->Prepare(weight, bias, s.out, s.in, Activation::kGelu);
          const auto before = Random(kRows * s.out, 4);
          const DeviceMatrix source(device_, x, kRows, s.in), y(device_, before, kRows, s.out);
          ASSERT_TRUE(products->Run(*linear, source.view(), y.view(), accumulate, phase).ok());
          const auto whole = y.Host();
          for (const int64_t first : {0, 1, 8, 20}) {
            for (const int64_t rows : {1, 2, 3, 5, 9}) {
              if (first + rows > kRows) continue;
              // Packed, and in views that are not aligned.
              for (const int64_t shift : {0, 1}) {
                const auto part_of = [&](const std::vector<float>& all, int64_t columns) {
                  return std::vector<float>(all.begin() + first * columns, all.begin() + (first + rows) * columns);
                };
                const DeviceMatrix part_x(device_, part_of(x, s.in), rows, s.in, s.in + 5 * shift, shift);
                const DeviceMatrix part(device_, part_of(before, s.out), rows, s.out, s.out + 3 * shift, shift);
                ASSERT_TRUE(products->Run(*linear, part_x.view(), part.view(), accumulate, phase).ok());
                ASSERT_EQ(part.Host(), part_of(whole, s.out)) << s.out << "x" << s.in << ": " << first << ", " << rows;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, FeedForwardHasTheBytesOfItsTwoProducts) {
  for (const bool bf16 : {false, true}) {
    const auto products = Make(bf16);
    for (const int64_t width : {96, 50}) {
      const auto up_weight = Random(width * 40, 1), up_bias = Random(width, 2), down_weight = Random(40 * width, 3);
      const auto up = *products->Prepare(up_weight, up_bias, width, 40, Activation::kGelu);
      const auto down = *products->Prepare(down_weight, {}, 40, width, Activation::kNone);
      for (const int64_t rows : {1, 6, 20}) {
        for (const Phase phase : kCounts) {
          const auto x = Random(rows * 40, 4);
          const DeviceMatrix y(device_, x, rows, 40), in_place(device_, x, rows, 40, 44);
          const DeviceMatrix wide(device_, Random(rows * width, 5), rows, width);
          ASSERT_TRUE(products->Run(*up, y.view(), wide.view(), false, phase).ok());
          ASSERT_TRUE(products->Run(*down, wide.view(), y.view(), true, phase).ok());
          ASSERT_TRUE(products->FeedForward(*up, *down, in_place.view(), in_place.view(), phase).ok());
          EXPECT_EQ(in_place.Host(), y.Host()) << rows;
        }
      }
    }
  }
}

TEST_P(LinearTest, ManyRowsGoInParts) {
  const auto products = Make(false);
  const int64_t rows = kGemmRows + 3;
  const auto weight = Random(4 * 8, 1), x = Random(rows * 8, 2);
  const auto linear = *products->Prepare(weight, {}, 4, 8, Activation::kNone);
  const DeviceMatrix source(device_, x, rows, 8), y(device_, Random(rows * 4, 3), rows, 4);
  ASSERT_TRUE(products->Run(*linear, source.view(), y.view(), false, Phase::kPrefill).ok());
  std::vector<float> expected(rows * 4);
  reference::Linear({x.data(), rows, 8}, weight, {}, Activation::kNone, false, {expected.data(), rows, 4});
  const auto result = y.Host();
  for (size_t i = 0; i < result.size(); ++i) ASSERT_NEAR(result[i], expected[i], 1e-5);
}

TEST_P(LinearTest, NoRowsAreFine) {
  const auto products = Make(false);
  const auto weight = Random(8 * 8, 1);
  const auto linear = *products->Prepare(weight, {}, 8, 8, Activation::kNone);
  const Matrix none(nullptr, 0, 8);
  for (const Phase phase : kCounts) {
    EXPECT_TRUE(products->Run(*linear, none, none, false, phase).ok());
    EXPECT_TRUE(products->FeedForward(*linear, *linear, none, none, phase).ok());
  }
}

}  // namespace
}  // namespace edgewise::cuda
