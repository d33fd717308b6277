// --weights of the CPU: what is exact about each format, and weights that are hard to store. That a product agrees with
// the reference, and a row depends on nothing else, linear_test.cc says of every format.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/kernels.h"
#include "tests/kernels/device_matrix.h"
#include "tests/kernels/quantized.h"

namespace edgewise {
namespace {

using testing::Random;

class CpuWeightsTest : public testing::DeviceTest {
 protected:
  bool int8() const { return GetParam().options.weights == "int8"; }
  bool tiles() const { return GetParam().options.isa == "amx" && !int8(); }  // whose inputs are rounded too

  std::vector<float> Multiply(const std::vector<float>& weight, int64_t out, const std::vector<float>& x, int64_t in) {
    const auto linear = *backend_->PrepareLinear(weight, {}, out, in, Activation::kNone);
    const auto rows = static_cast<int64_t>(x.size()) / in;
    const testing::DeviceMatrix source(*backend_, x, rows, in), y(*backend_, Random(rows * out, 4), rows, out);
    EXPECT_TRUE(backend_->Linear(*linear, source.view(), y.view(), false).ok());
    return y.Host();
  }
};
EDGEWISE_TEST_ON(CpuFormats, CpuWeightsTest);

// Integers that each format holds as they are, extremes and an odd number of inputs among them.
TEST_P(CpuWeightsTest, ProductsOfIntegersAreExact) {
  for (const int64_t in : {1, 5, 64, 259}) {
    const int64_t out = 67, rows = 11;
    std::vector<float> weight(out * in), x(rows * in);
    for (int64_t i = 0; i < out * in; ++i) weight[i] = static_cast<float>(i * 37 % 255 - 127);
    for (int64_t c = 0; c < out; ++c) weight[c * in] = c % 2 == 0 ? 127.0f : -127.0f;  // so that the scale is 1
    for (int64_t i = 0; i < rows * in; ++i) x[i] = static_cast<float>(i * 101 % 256 - (i / in % 3) * 60);
    for (int64_t r = 0; r < rows; ++r) {
      const float low = -60.0f * static_cast<float>(r % 3);
      for (int64_t i = 0; i < in; ++i) x[r * in + i] = std::max(low, x[r * in + i]);
      x[r * in] = low + 255.0f;
      if (in > 1) x[r * in + 1] = low;
    }
    const std::vector<float> y = Multiply(weight, out, x, in);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < out; ++c) {
        int64_t sum = 0;
        for (int64_t i = 0; i < in; ++i) {
          sum += static_cast<int64_t>(weight[c * in + i]) * static_cast<int64_t>(x[r * in + i]);
        }
        if (in == 1 && int8()) {  // the range is from 0: the scale is not 1
          ASSERT_NEAR(y[r * out + c], static_cast<float>(sum), 1e-6 * std::abs(static_cast<double>(sum)));
        } else {
          ASSERT_EQ(y[r * out + c], static_cast<float>(sum)) << in << " inputs, row " << r << ", output " << c;
        }
      }
    }
  }
}

// The most inputs that fit, all at the ends of their range; one more is refused.
TEST_P(CpuWeightsTest, TheLongestSumFits) {
  const int64_t in = kMaxInt8Inputs;
  const std::vector<float> weight(static_cast<size_t>(in) + 1, -127.0f), x(static_cast<size_t>(in), 255.0f);
  if (!int8()) GTEST_SKIP() << "sums of integers only";
  const std::vector<float> y = Multiply({weight.begin(), weight.end() - 1}, 1, x, in);
  EXPECT_FLOAT_EQ(y[0], -127.0f * 255.0f * static_cast<float>(in));
  const auto refused = backend_->PrepareLinear(weight, {}, 1, in + 1, Activation::kNone);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("--weights=int8 takes at most 66310"));
}

TEST_P(CpuWeightsTest, HardWeightsSpoilNoOtherOutput) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t in = 48, out = 7;
  std::vector<float> weight = Random(out * in, 1);
  const auto output = [&](int64_t c) { return std::span<float>(weight).subspan(c * in, in); };
  for (float& value : output(1)) value = 0.0f;
  for (float& value : output(2)) value = std::copysign(1e37f, value);
  for (float& value : output(3)) value *= 1e-40f;
  for (float& value : output(4)) value = std::copysign(std::numeric_limits<float>::denorm_min(), value);
  output(5)[7] = kInfinity;
  output(6)[7] = std::nanf("");
  std::vector<float> x = Random(3 * in, 2);
  for (int64_t i = 0; i < in; ++i) x[in + i] = 0.0f, x[2 * in + i] *= 1e-30f;
  const std::vector<float> y = Multiply(weight, out, x, in);
  const std::vector<float> alone = Multiply({weight.begin(), weight.begin() + in}, 1, x, in);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(y[r * out], alone[r]);
    EXPECT_EQ(y[r * out + 1], 0.0f);
    for (int64_t c = 0; c < 5; ++c) EXPECT_TRUE(std::isfinite(y[r * out + c])) << r << " " << c;
    for (int64_t c = 5; c < 7; ++c) EXPECT_FALSE(std::isfinite(y[r * out + c])) << r << " " << c;
  }
  double huge = 0.0, tiny = 0.0, huge_size = 0.0, tiny_size = 0.0;
  for (int64_t i = 0; i < in; ++i) {
    huge += static_cast<double>(weight[2 * in + i]) * x[i], huge_size += std::abs(1e37 * x[i]);
    tiny += static_cast<double>(weight[3 * in + i]) * x[i], tiny_size += 4e-40 * std::abs(x[i]);
  }
  EXPECT_NEAR(y[2], huge, 0.02 * huge_size);
  EXPECT_NEAR(y[3], tiny, tiles() ? 0x1p-126 * in : 0.02 * tiny_size);
}

TEST_P(CpuWeightsTest, AnInputThatIsNotFiniteSpoilsItsRowAlone) {
  const int64_t in = 40, out = 20;
  const std::vector<float> weight = Random(out * in, 1), clean = Random(3 * in, 2);
  const std::vector<float> want = Multiply(weight, out, clean, in);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = clean;
    x[in + 39] = bad;
    const std::vector<float> y = Multiply(weight, out, x, in);
    for (int64_t c = 0; c < out; ++c) {
      EXPECT_EQ(y[c], want[c]);
      EXPECT_FALSE(std::isfinite(y[out + c]));
      EXPECT_EQ(y[2 * out + c], want[2 * out + c]);
    }
  }
}

// Without tiles bfloat16 is float32 with other weights, to the byte.
TEST_P(CpuWeightsTest, Bfloat16HasTheBytesOfFloat32WithRoundedWeights) {
  if (int8() || tiles()) GTEST_SKIP() << "of bfloat16 and float32 inputs; tiles_test.cc has what tiles give";
  BackendOptions options = GetParam().options;
  options.weights = "float32";
  const auto exact = *CreateBackend(options);
  const int64_t out = 130, in = 600;
  const std::vector<float> weight = Random(out * in, 1);
  std::vector<float> rounded = weight;
  for (float& value : rounded) {
    const auto bits = std::bit_cast<uint32_t>(value);
    value = std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
  }
  for (const int64_t rows : {1, 8, 9, 250}) {
    const std::vector<float> x = Random(rows * in, 3);
    const auto linear = *exact->PrepareLinear(rounded, {}, out, in, Activation::kNone);
    const testing::DeviceMatrix source(*exact, x, rows, in), y(*exact, Random(rows * out, 4), rows, out);
    ASSERT_TRUE(exact->Linear(*linear, source.view(), y.view(), false).ok());
    ASSERT_EQ(Multiply(weight, out, x, in), y.Host()) << rows << " rows";
  }
}

// Every instruction set makes the same integers of a row.
TEST_P(CpuWeightsTest, RowsBecomeTheIntegersOfTheDefinition) {
  const CpuKernels& kernels = KernelsFor(*SelectIsa(GetParam().options.isa));
  const int bits = 32 / kernels.int8_group;
  for (const size_t columns : {1, 3, 16, 17, 100, 259}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      std::vector<float> x = Random(columns, seed, std::pow(10.0f, static_cast<float>(seed) - 34.0f));
      if (seed % 4 == 1) std::fill(x.begin(), x.end(), 0.0f);
      if (seed % 4 == 2) x[columns / 2] = 1e38f;
      if (seed % 4 == 3) {  // halves: ties
        for (size_t i = 0; i < columns; ++i) x[i] = static_cast<float>(i * 53 % 511) * 0.5f;
        x[0] = 255.0f;
      }
      const testing::Quantized want = testing::QuantizedRow(x);
      std::vector<uint32_t> packed((columns + kernels.int8_group - 1) / kernels.int8_group + 1, 0xABCDEF01u);
      float scale = 0.0f;
      int32_t zero = 0;
      kernels.quantize_row(x.data(), static_cast<int64_t>(columns), packed.data(), &scale, &zero);
      ASSERT_EQ(scale, want.scale);
      ASSERT_EQ(zero, want.zero);
      for (size_t i = 0; i < columns; ++i) {
        const uint32_t word = packed[i / kernels.int8_group] >> i % kernels.int8_group * bits;
        ASSERT_EQ(word & ((1u << bits) - 1), static_cast<uint32_t>(want.levels[i])) << columns << ", seed " << seed;
      }
      ASSERT_EQ(packed.back(), 0xABCDEF01u) << "something behind the row was written";
    }
  }
}

TEST(WeightsTest, PairsThatAreNotBuiltAreRefused) {
  const auto refusal = [](const BackendOptions& options) { return CreateBackend(options).status().ToString(); };
  EXPECT_EQ(refusal({.weights = "int4"}), "INVALID_ARGUMENT: weights is \"int4\"; allowed: float32, bfloat16, int8");
  EXPECT_EQ(refusal({.device = "cuda", .weights = "int4"}),
            "INVALID_ARGUMENT: weights is \"int4\"; allowed: float32, bfloat16, int8");
  EXPECT_EQ(refusal({.device = "cuda:1", .weights = "int8"}),
            "UNIMPLEMENTED: weights is \"int8\", which the CPU alone serves; cuda:1 takes float32, and precision bf16");
  std::string why_cpu;
  const auto chosen = CreateBackend({.device = "auto", .weights = "bfloat16"}, &why_cpu);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT((*chosen)->device(), ::testing::MatchesRegex("cpu/[a-z0-9]+/bfloat16"));
  EXPECT_EQ(why_cpu, "");
}

}  // namespace
}  // namespace edgewise
