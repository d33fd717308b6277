// Matrix products: right, and a row's result depends on that row alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <tuple>

#include "kernels/backend.h"
#include "kernels/reference.h"

namespace edgewise {

inline void PrintTo(Phase phase, std::ostream* out) { *out << (phase == Phase::kPrefill ? "many rows" : "few rows"); }

namespace {

std::vector<float> Random(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

std::unique_ptr<Backend> MakeBackend(int threads, const std::string& isa = "auto") {
  BackendOptions options;
  options.isa = isa;
  options.num_threads = threads;
  auto backend = CreateBackend(options);
  return backend.ok() ? *std::move(backend) : nullptr;  // an instruction set that this machine lacks
}

struct Shape {
  int64_t out, in;
};

const Shape kShapes[] = {
    {64, 64},  {192, 64},   // the published models
    {1, 1},    {3, 17},     // not a multiple of any vector
    {128, 32}, {2, 256},    // clusters, classifier
    {65, 48},  {400, 384},  // characters; several panels of columns
};

// How many rows a product is for, and the instruction set. Weights lie as the first backend of a process likes them, so
// run each test in a process of its own, as ctest does.
class LinearTest : public ::testing::TestWithParam<std::tuple<Phase, std::string>> {
 protected:
  void SetUp() override {
    if (Make(1) == nullptr) GTEST_SKIP() << "not on this machine";
  }
  std::unique_ptr<Backend> Make(int threads) const { return MakeBackend(threads, std::get<1>(GetParam())); }
  Phase phase() const { return std::get<0>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, LinearTest,
                         ::testing::Combine(::testing::Values(Phase::kPrefill, Phase::kDecode),
                                            ::testing::Values<std::string>("generic", "avx2", "avx512")));

TEST_P(LinearTest, AgreesWithTheReference) {
  const auto backend = Make(2);
  for (const Shape shape : kShapes) {
    for (const int64_t rows : {1, 63, 64, 65, 200}) {
      const auto weight = Random(shape.out * shape.in, 1), bias = Random(shape.out, 2), x = Random(rows * shape.in, 3);
      for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
        for (const bool accumulate : {false, true}) {
          if (accumulate && activation != Activation::kNone) continue;
          const auto linear = *backend->PrepareLinear(weight, bias, shape.out, shape.in, activation);
          std::vector<float> y = Random(rows * shape.out, 4), expected = y;
          ASSERT_TRUE(
              backend->Linear(*linear, {x.data(), rows, shape.in}, {y.data(), rows, shape.out}, accumulate, phase())
                  .ok());
          reference::Linear({x.data(), rows, shape.in}, weight, bias, activation, accumulate,
                            {expected.data(), rows, shape.out});
          for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5 * std::sqrt(shape.in) + 1e-5);
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowDependsOnNothingElse) {
  for (const Shape shape : kShapes) {
    const auto weight = Random(shape.out * shape.in, 1), bias = Random(shape.out, 2), x = Random(300 * shape.in, 3);
    std::vector<float> whole(300 * shape.out);
    {
      const auto backend = Make(1);
      const auto linear = *backend->PrepareLinear(weight, bias, shape.out, shape.in, Activation::kGelu);
      ASSERT_TRUE(
          backend->Linear(*linear, {x.data(), 300, shape.in}, {whole.data(), 300, shape.out}, false, phase()).ok());
    }
    for (const int threads : {1, 2, 4}) {
      const auto backend = Make(threads);
      const auto linear = *backend->PrepareLinear(weight, bias, shape.out, shape.in, Activation::kGelu);
      for (const int64_t first : {0, 1, 63, 64, 100, 299}) {
        for (const int64_t rows : {1, 2, 64, 130}) {
          if (first + rows > 300) continue;
          std::vector<float> part(rows * shape.out);
          ASSERT_TRUE(backend
                          ->Linear(*linear, {x.data() + first * shape.in, rows, shape.in},
                                   {part.data(), rows, shape.out}, false, phase())
                          .ok());
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * shape.out, part.size() * sizeof(float)), 0)
              << shape.out << "x" << shape.in << ": rows " << first << " to " << first + rows << ", " << threads
              << " threads";
        }
      }
    }
  }
}

TEST_P(LinearTest, StridedViewsGiveTheSameBytes) {
  const auto backend = Make(1);
  const auto weight = Random(24 * 16, 1), bias = Random(24, 2), wide = Random(100 * 40, 3);
  const auto linear = *backend->PrepareLinear(weight, bias, 24, 16, Activation::kNone);
  std::vector<float> packed(100 * 16), expected(100 * 24), strided(100 * 30, -1.0f);
  for (int r = 0; r < 100; ++r) std::copy_n(wide.data() + r * 40 + 8, 16, packed.data() + r * 16);
  ASSERT_TRUE(backend->Linear(*linear, {packed.data(), 100, 16}, {expected.data(), 100, 24}, false, phase()).ok());
  ASSERT_TRUE(
      backend->Linear(*linear, {wide.data() + 8, 100, 16, 40}, {strided.data(), 100, 24, 30}, false, phase()).ok());
  for (int r = 0; r < 100; ++r) {
    ASSERT_EQ(std::memcmp(strided.data() + r * 30, expected.data() + r * 24, 24 * sizeof(float)), 0);
    ASSERT_EQ(strided[r * 30 + 24], -1.0f) << "nothing is written beside the view";
  }
}

TEST_P(LinearTest, FeedForwardHasTheBytesOfItsTwoProducts) {
  const auto backend = Make(2);
  const auto up_weight = Random(96 * 40, 1), up_bias = Random(96, 2), down_weight = Random(40 * 96, 3);
  const auto up = *backend->PrepareLinear(up_weight, up_bias, 96, 40, Activation::kGelu);
  const auto down = *backend->PrepareLinear(down_weight, {}, 40, 96, Activation::kNone);
  for (const int64_t rows : {1, 5, 64, 130}) {
    const auto x = Random(rows * 40, 4);
    std::vector<float> wide(rows * 96), expected = x, in_place = x;
    ASSERT_TRUE(backend->Linear(*up, {x.data(), rows, 40}, {wide.data(), rows, 96}, false, phase()).ok());
    ASSERT_TRUE(backend->Linear(*down, {wide.data(), rows, 96}, {expected.data(), rows, 40}, true, phase()).ok());
    const Matrix y(in_place.data(), rows, 40);
    ASSERT_TRUE(backend->FeedForward(*up, *down, y, y, phase()).ok());
    EXPECT_EQ(in_place, expected) << rows;
  }
}

TEST(LayerNormTest, AgreesWithTheReference) {
  const auto backend = MakeBackend(2);
  const auto x = Random(130 * 48, 1), weight = Random(48, 2), bias = Random(48, 3);
  std::vector<float> y(x.size()), expected(x.size());
  ASSERT_TRUE(backend->LayerNorm({x.data(), 130, 48}, weight.data(), bias.data(), 1e-5f, {y.data(), 130, 48}).ok());
  reference::LayerNorm({x.data(), 130, 48}, weight.data(), bias.data(), 1e-5f, {expected.data(), 130, 48});
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5);
}

TEST(BackendTest, UnknownNamesAreRefused) {
  BackendOptions options;
  options.device = "tpu";
  EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = {};
  options.isa = "sse9";
  EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = {};
  options.precision = "fp8";
  EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = {};
  options.num_threads = -1;
  EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace edgewise
