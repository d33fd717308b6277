// Matrix products on every device: right, and a row's result depends on that row alone.
#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "kernels/reference/reference.h"
#include "tests/kernels/device_matrix.h"
#include "tests/kernels/quantized.h"

namespace edgewise {
namespace {

using testing::DeviceMatrix;
using testing::Random;
using testing::Rounded;
using testing::RowsOf;

struct ProductShape {
  int64_t out, in;
};

const ProductShape kShapes[] = {
    {64, 64},   {192, 64},  // the published models
    {128, 32},  {2, 256},   // clusters, classifier
    {1, 1},     {3, 17},    // less than a vector of anything
    {20, 30},               // a GPU's products take multiples of 4 and 8
    {17, 136},  {9, 257},   // a vector, and one, more than what a warp reads at a time
    {65, 48},               // a vector of columns, and one, more than a CPU's panel of 48
    {400, 384},             // panels of three vectors and of two; more inputs than a segment
};
constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode};
constexpr Activation kActivations[] = {Activation::kNone,      Activation::kRelu, Activation::kGelu,
                                       Activation::kGeluTanh,  Activation::kTanh, Activation::kSilu,
                                       Activation::kQuickGelu, Activation::kMish};

// Rows of `in` numbers, to 8 bits.
std::vector<float> Rounded(std::vector<float> values, int64_t in,
                           testing::Quantized quantized(std::span<const float>)) {
  for (size_t row = 0; row < values.size(); row += in) {
    const testing::Quantized levels = quantized(std::span<const float>(values).subspan(row, in));
    for (int64_t i = 0; i < in; ++i) values[row + i] = levels.value(i);
  }
  return values;
}

class LinearTest : public testing::DeviceTest {
 protected:
  // Operands as the device sees them.
  std::vector<float> SeenWeight(const std::vector<float>& weight, int64_t in) const {
    const std::string& format = GetParam().options.weights;
    if (format == "int8") return Rounded(weight, in, testing::QuantizedWeights);
    return format == "bfloat16" || GetParam().bf16 ? Rounded(weight) : weight;
  }
  std::vector<float> SeenInput(const std::vector<float>& x, int64_t in) const {
    const BackendOptions& options = GetParam().options;
    if (options.weights == "int8") return Rounded(x, in, testing::QuantizedRow);
    const bool tiles = options.isa == "amx" && options.weights == "bfloat16";
    return GetParam().bf16 || tiles ? Rounded(x) : x;
  }
  // Shapes that are not too large for the emulator.
  std::vector<ProductShape> Shapes() const {
    std::vector<ProductShape> shapes;
    for (const ProductShape& shape : kShapes) {
      if (shape.out * shape.in <= Sized(1 << 20, 5000)) shapes.push_back(shape);
    }
    return shapes;
  }
};
EDGEWISE_TEST_ON(Devices, LinearTest);
INSTANTIATE_TEST_SUITE_P(CpuFormats, LinearTest, ::testing::ValuesIn(testing::CpuFormats()), testing::NameOf);

TEST_P(LinearTest, AgreesWithTheReference) {
  const int64_t row_counts[] = {
      1,            // the next token of one text
      3,   13,      // of several, few enough for one block, and more
      63,  64, 65,  // whole tiles of rows, and one less or more
      200,
  };
  for (const ProductShape s : Shapes()) {
    for (const int64_t rows : row_counts) {
      if (rows > Sized(200, 13)) continue;
      const auto weight = Random(s.out * s.in, 1), bias = Random(s.out, 2), x = Random(rows * s.in, 3);
      const auto before = Random(rows * s.out, 4);
      const auto seen_weight = SeenWeight(weight, s.in), seen_x = SeenInput(x, s.in);
      for (const Activation activation : kActivations) {
        for (const bool with_bias : {false, true}) {
          const std::span<const float> b = with_bias ? std::span<const float>(bias) : std::span<const float>();
          const auto linear = *backend_->PrepareLinear(weight, b, s.out, s.in, activation);
          for (const bool accumulate : {false, true}) {
            if (accumulate && activation != Activation::kNone) continue;
            std::vector<float> expected = before;
            reference::Linear({seen_x.data(), rows, s.in}, seen_weight, b, activation, accumulate,
                              {expected.data(), rows, s.out});
            for (const Phase phase : kPhases) {
              const DeviceMatrix source(*backend_, x, rows, s.in), y(*backend_, before, rows, s.out);
              ASSERT_TRUE(backend_->Linear(*linear, source.view(), y.view(), accumulate, phase).ok());
              ASSERT_LE(testing::LargestDifference(y.Host(), expected), 1e-5 * std::sqrt(s.in) + 1e-5)
                  << s.out << "x" << s.in << ", " << rows << " rows";
            }
          }
        }
      }
    }
  }
}

// One number in, one out: each activation over its whole range, and NaN.
TEST_P(LinearTest, ActivationsAgreeEverywhere) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) / 128.0f);
  for (const float far : {1e-20f, 50.0f, 1e3f, 1e6f}) x.insert(x.end(), {far, -far});
  const auto rows = static_cast<int64_t>(x.size());
  const std::vector<float> one = {1.0f};
  const std::vector<float> seen = SeenInput(x, 1);
  for (const Activation activation : kActivations) {
    const auto linear = *backend_->PrepareLinear(one, {}, 1, 1, activation);
    std::vector<float> expected(x.size());
    reference::Linear({seen.data(), rows, 1}, one, {}, activation, false, {expected.data(), rows, 1});
    const DeviceMatrix source(*backend_, x, rows, 1), y(*backend_, expected, rows, 1);
    ASSERT_TRUE(backend_->Linear(*linear, source.view(), y.view(), false).ok());
    const std::vector<float> got = y.Host();
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 2e-6 * std::max(1.0f, std::abs(expected[i])))
          << x[i] << ", activation " << static_cast<int>(activation);
    }
    if (activation == Activation::kRelu) continue;
    const DeviceMatrix nan(*backend_, {std::nanf("")}, 1, 1);
    ASSERT_TRUE(backend_->Linear(*linear, nan.view(), y.view().Rows(0, 1), false).ok());
    EXPECT_TRUE(std::isnan(y.Host()[0])) << static_cast<int>(activation);
  }
}

TEST_P(LinearTest, ARowDependsOnNothingElse) {
  const std::pair<int64_t, int64_t> parts[] = {
      {0, 1},    {1, 2},   {8, 3},    {8, 5}, {0, 9}, {20, 1},  // few rows, anywhere
      {63, 64},  {64, 64}, {100, 64},                           // many rows, cut otherwise
      {64, 130}, {299, 1},                                      // several products; the last row
  };
  const int64_t all = Sized(300, 21);
  for (const ProductShape s : Shapes()) {
    const auto weight = Random(s.out * s.in, 1), bias = Random(s.out, 2), x = Random(all * s.in, 3);
    const auto before = Random(all * s.out, 4);
    const auto linear = *backend_->PrepareLinear(weight, bias, s.out, s.in, Activation::kGelu);
    for (const Phase phase : kPhases) {
      for (const bool accumulate : {false, true}) {
        const DeviceMatrix source(*backend_, x, all, s.in), y(*backend_, before, all, s.out);
        ASSERT_TRUE(backend_->Linear(*linear, source.view(), y.view(), accumulate, phase).ok());
        const auto whole = y.Host();
        for (const auto& [first, rows] : parts) {
          if (first + rows > all) continue;
          for (const int64_t shift : {0, 1}) {  // packed, and in views that are not aligned
            const DeviceMatrix part_x(*backend_, RowsOf(x, s.in, first, rows), rows, s.in, s.in + 5 * shift, shift);
            const DeviceMatrix part(*backend_, RowsOf(before, s.out, first, rows), rows, s.out, s.out + 3 * shift,
                                    shift);
            ASSERT_TRUE(backend_->Linear(*linear, part_x.view(), part.view(), accumulate, phase).ok());
            ASSERT_EQ(part.Host(), RowsOf(whole, s.out, first, rows))
                << s.out << "x" << s.in << ": " << first << ", " << rows << " at " << shift;
          }
        }
      }
    }
  }
}

class GpuLinearTest : public LinearTest {};
EDGEWISE_TEST_ON(Gpus, GpuLinearTest);

// A library chooses the kernel of a product of many rows; it may depend on their number.
TEST_P(GpuLinearTest, RowsInAnyNumberHaveTheSameBytes) {
  const std::vector<ProductShape> of_models = {{192, 64},   {64, 256},   {1152, 384},
                                               {384, 1536}, {2304, 768}, {768, 3072}};
  const std::vector<ProductShape> shapes = Sized(1, 0) != 0 ? of_models : std::vector<ProductShape>{{20, 30}};
  const int64_t all = Sized(16384, 21);
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= 300; rows += rows < 70 ? 1 : 23) counts.push_back(rows);
  counts.insert(counts.end(), {512, 1000, 1024, 4099, 16383});
  for (const ProductShape s : shapes) {
    const auto x = Random(all * s.in, 3);
    const auto linear = *backend_->PrepareLinear(Random(s.out * s.in, 1), {}, s.out, s.in, Activation::kNone);
    const DeviceMatrix source(*backend_, x, all, s.in), y(*backend_, Random(all * s.out, 4), all, s.out);
    ASSERT_TRUE(backend_->Linear(*linear, source.view(), y.view(), false, Phase::kPrefill).ok());
    const auto whole = y.Host();
    for (const int64_t rows : counts) {
      if (rows > all) continue;
      const int64_t first = rows * 37 % (all - rows + 1);
      const DeviceMatrix part(*backend_, Random(rows * s.out, 5), rows, s.out);
      ASSERT_TRUE(backend_->Linear(*linear, source.view().Rows(first, rows), part.view(), false, Phase::kPrefill).ok());
      ASSERT_TRUE(testing::SameBytes(part.Host(), RowsOf(whole, s.out, first, rows)))
          << s.out << "x" << s.in << ": " << rows << " rows from " << first;
    }
  }
}

class CpuLinearTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuLinearTest);
INSTANTIATE_TEST_SUITE_P(CpuFormats, CpuLinearTest, ::testing::ValuesIn(testing::CpuFormats()), testing::NameOf);

TEST_P(CpuLinearTest, ThreadsChangeNoByte) {
  for (const ProductShape s : kShapes) {
    const auto weight = Random(s.out * s.in, 1), bias = Random(s.out, 2), x = Random(300 * s.in, 3);
    for (const Phase phase : kPhases) {
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 4}) {
        const auto backend = *Make(threads);
        const auto linear = *backend->PrepareLinear(weight, bias, s.out, s.in, Activation::kGelu);
        const DeviceMatrix source(*backend, x, 300, s.in), y(*backend, Random(300 * s.out, 4), 300, s.out);
        ASSERT_TRUE(backend->Linear(*linear, source.view(), y.view(), false, phase).ok());
        results.push_back(y.Host());
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_EQ(results[0], results[2]);
    }
  }
}

// Enough work that all threads are awake for most of it.
TEST_P(CpuLinearTest, ThreadsChangeNoByteOfAFeedForward) {
  const int64_t rows = 900, columns = 128, width = 512;
  const auto up_weight = Random(width * columns, 1), down_weight = Random(columns * width, 2);
  const auto x = Random(rows * columns, 3), before = Random(rows * columns, 4);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    const auto backend = *Make(threads);
    const auto up = *backend->PrepareLinear(up_weight, {}, width, columns, Activation::kGelu);
    const auto down = *backend->PrepareLinear(down_weight, {}, columns, width, Activation::kNone);
    const DeviceMatrix source(*backend, x, rows, columns), y(*backend, before, rows, columns);
    ASSERT_TRUE(backend->FeedForward(*up, *down, source.view(), y.view(), Phase::kPrefill).ok());
    results.push_back(y.Host());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(LinearTest, FeedForwardHasTheBytesOfItsTwoProducts) {
  for (const int64_t width : {96, 50}) {  // whole vectors, and not
    const auto up_weight = Random(width * 40, 1), up_bias = Random(width, 2), down_weight = Random(40 * width, 3);
    const auto up = *backend_->PrepareLinear(up_weight, up_bias, width, 40, Activation::kGelu);
    const auto down = *backend_->PrepareLinear(down_weight, Random(40, 6), 40, width, Activation::kNone);
    // One row; a few; some; what two threads of a CPU share by columns, and by rows.
    for (const int64_t rows : {1, 5, 20, 130, 500}) {
      if (rows > Sized(500, 20)) continue;
      for (const Phase phase : kPhases) {
        const auto x = Random(rows * 40, 4);
        const DeviceMatrix y(*backend_, x, rows, 40), in_place(*backend_, x, rows, 40, 44);
        const DeviceMatrix wide(*backend_, Random(rows * width, 5), rows, width);
        ASSERT_TRUE(backend_->Linear(*up, y.view(), wide.view(), false, phase).ok());
        ASSERT_TRUE(backend_->Linear(*down, wide.view(), y.view(), true, phase).ok());
        ASSERT_TRUE(backend_->FeedForward(*up, *down, in_place.view(), in_place.view(), phase).ok());
        EXPECT_EQ(in_place.Host(), y.Host()) << rows;
      }
    }
  }
}

TEST_P(LinearTest, NoRowsAndManyRowsAreFine) {
  for (const int64_t rows : {0, 16387}) {  // three more than one product of a GPU may have
    const auto weight = Random(4 * 8, 1), x = Random(rows * 8, 2);
    const auto linear = *backend_->PrepareLinear(weight, {}, 4, 8, Activation::kNone);
    const auto back = *backend_->PrepareLinear(weight, {}, 8, 4, Activation::kNone);
    const DeviceMatrix source(*backend_, x, rows, 8), y(*backend_, Random(rows * 4, 3), rows, 4);
    ASSERT_TRUE(backend_->Linear(*linear, source.view(), y.view(), false, Phase::kPrefill).ok());
    std::vector<float> expected(rows * 4);
    const auto seen_weight = SeenWeight(weight, 8), seen_x = SeenInput(x, 8);
    reference::Linear({seen_x.data(), rows, 8}, seen_weight, {}, Activation::kNone, false, {expected.data(), rows, 4});
    EXPECT_LE(testing::LargestDifference(y.Host(), expected), 1e-5);
    EXPECT_TRUE(backend_->FeedForward(*linear, *back, source.view(), source.view(), Phase::kPrefill).ok());
  }
}

TEST_P(LinearTest, SaysWhichDeviceItIs) {
  const BackendOptions& options = GetParam().options;
  const std::string numbers = options.weights == "float32" ? options.precision : options.weights;
  const std::string isa = options.isa == "amx" && options.weights == "int8" ? "avx512" : options.isa;  // the same bytes
  EXPECT_THAT(backend_->device(),
              ::testing::MatchesRegex((options.device == "cpu" ? "cpu/" + isa : "cuda/sm_[0-9]+") + "/" + numbers));
  EXPECT_FALSE(backend_->lost());
}

TEST(BackendTest, UnknownNamesAreRefused) {
  const BackendOptions refused[] = {{.device = "tpu"}, {.num_threads = -1}, {.isa = "sse9"}, {.precision = "fp8"}};
  for (const BackendOptions& options : refused) {
    EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace edgewise
