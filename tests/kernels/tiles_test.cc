// Products on AMX tiles: the bytes of int8 without them, and those of bfloat16 by their definition.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/kernels.h"
#include "tests/kernels/device_matrix.h"

namespace edgewise {
namespace {

using testing::Random;

// Numbers below 2^-126 count as 0 in products on tiles.
float Flushed(float value) { return std::abs(value) < std::numeric_limits<float>::min() ? 0.0f : value; }

// Half to even; a number that is not finite stays.
float Bfloat16(float value) {
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}
float Input(float value) { return Bfloat16(Flushed(value)); }
float Weight(float value) { return Flushed(Bfloat16(value)); }

// CpuKernels::gemm_bfloat16 with a group of 2, one output.
float Output(const float* x, const float* weight, int64_t in) {
  float sum = 0.0f;
  for (int64_t step = 0; step < in; step += 32) {
    float chains[2] = {0.0f, 0.0f};
    for (int64_t i = step; i < std::min(in, step + 32); ++i) {
      float& chain = chains[i % 2];
      chain = Flushed(std::fma(Input(x[i]), Weight(weight[i]), chain));
    }
    sum = Flushed(sum + Flushed(chains[0] + chains[1]));
  }
  return sum;
}

class TilesTest : public ::testing::Test {
 protected:
  static absl::StatusOr<std::unique_ptr<Backend>> Make(const std::string& isa, const std::string& weights) {
    return CreateBackend({.device = "cpu", .num_threads = 1, .isa = isa, .weights = weights});
  }
  void SetUp() override {
    const auto backend = Make("amx", "bfloat16");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
  }
  static std::vector<float> Multiply(Backend& backend, const std::vector<float>& weight, const std::vector<float>& bias,
                                     const std::vector<float>& x, int64_t rows, bool accumulate) {
    const int64_t out = static_cast<int64_t>(bias.size()), in = static_cast<int64_t>(weight.size()) / out;
    const auto linear =
        *backend.PrepareLinear(weight, bias, out, in, accumulate ? Activation::kNone : Activation::kGelu);
    const testing::DeviceMatrix source(backend, x, rows, in), y(backend, Random(rows * out, 4), rows, out);
    EXPECT_TRUE(backend.Linear(*linear, source.view(), y.view(), accumulate).ok());
    return y.Host();
  }
};

// A device's name stands for its bytes.
TEST_F(TilesTest, AreInTheNameOfTheDeviceWhereTheyChangeBytes) {
  for (const char* const isa : {"amx", "auto"}) {
    EXPECT_EQ((*Make(isa, "float32"))->device(), "cpu/avx512/fp32");
    EXPECT_EQ((*Make(isa, "int8"))->device(), "cpu/avx512/int8");
    EXPECT_EQ((*Make(isa, "bfloat16"))->device(), "cpu/amx/bfloat16");
  }
  EXPECT_EQ((*Make("avx512", "bfloat16"))->device(), "cpu/avx512/bfloat16");
}

TEST_F(TilesTest, Int8HasTheBytesOfAvx512) {
  const auto tiles = *Make("amx", "int8"), vectors = *Make("avx512", "int8");
  for (const int64_t in : {1, 7, 63, 64, 65, 300, 1024}) {
    for (const int64_t out : {1, 16, 33, 64, 100, 150}) {
      const std::vector<float> weight = Random(out * in, 1), bias = Random(out, 2);
      for (const int64_t rows : {1, 8, 9, 15, 16, 17, 31, 33, 48, 97, 250}) {
        const std::vector<float> x = Random(rows * in, 3);
        for (const bool accumulate : {false, true}) {
          ASSERT_EQ(Multiply(*tiles, weight, bias, x, rows, accumulate),
                    Multiply(*vectors, weight, bias, x, rows, accumulate))
              << out << "x" << in << ", " << rows << " rows";
        }
      }
    }
  }
}

// Bit for bit: whole steps and parts of one, and numbers of all sizes, so that the order of every addition matters and
// some products and sums are below 2^-126.
TEST_F(TilesTest, Bfloat16IsTheSumOfItsDefinition) {
  const auto backend = *Make("amx", "bfloat16");
  const int64_t rows = 19, out = 37;
  for (const int64_t in : {1, 2, 31, 32, 33, 64, 95, 300, 1000}) {
    for (const float size : {1.0f, 1e-19f, 1e-36f, 1e15f}) {
      std::vector<float> weight = Random(out * in, 1, size), x = Random(rows * in, 3);
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i * 7 % 25) - 16);
      const auto linear = *backend->PrepareLinear(weight, {}, out, in, Activation::kNone);
      const testing::DeviceMatrix source(*backend, x, rows, in), y(*backend, Random(rows * out, 4), rows, out);
      ASSERT_TRUE(backend->Linear(*linear, source.view(), y.view(), false).ok());
      const std::vector<float> got = y.Host();
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < out; ++c) {
          const float want = Output(x.data() + r * in, weight.data() + c * in, in);
          ASSERT_EQ(got[r * out + c], want) << in << " inputs of " << size << ", row " << r << ", output " << c;
        }
      }
    }
  }
}

// Halves between two bfloat16 numbers go to the even one; what is next to a half goes where it is nearer.
TEST_F(TilesTest, InputsAreRoundedHalfToEven) {
  const auto backend = *Make("amx", "bfloat16");
  std::vector<float> x;
  for (const uint32_t upper : {0x3F80u, 0x3F81u, 0xC2FEu, 0xC2FFu, 0x0080u, 0x7F7Eu}) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  const auto rows = static_cast<int64_t>(x.size());
  const std::vector<float> one = {1.0f};
  const auto linear = *backend->PrepareLinear(one, {}, 1, 1, Activation::kNone);
  const testing::DeviceMatrix source(*backend, x, rows, 1), y(*backend, x, rows, 1);
  ASSERT_TRUE(backend->Linear(*linear, source.view(), y.view(), false).ok());
  const std::vector<float> got = y.Host();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(got[i], Input(x[i])) << x[i];
}

// Memory whose end is the end of what may be read.
class EndOfMemory {
 public:
  explicit EndOfMemory(size_t bytes)
      : memory_(mmap(nullptr, 2 * kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_EQ(mprotect(memory_, kSize, PROT_READ | PROT_WRITE), 0);
    begin_ = static_cast<char*>(memory_) + kSize - bytes;
  }
  EndOfMemory(const EndOfMemory&) = delete;
  EndOfMemory& operator=(const EndOfMemory&) = delete;
  ~EndOfMemory() { munmap(memory_, 2 * kSize); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(begin_);
  }

 private:
  static constexpr size_t kSize = size_t{1} << 16;
  void* memory_;
  char* begin_;
};

TEST_F(TilesTest, NothingIsReadBehindTheOperands) {
  const CpuKernels& kernels = KernelsFor(Isa::kAmx);
  const int64_t columns = 5, groups = 32;
  const EndOfMemory panels(groups * 16 * 4);
  for (const int64_t rows : {1, 7, 16, 17, 40}) {
    const EndOfMemory x(rows * groups * 4);
    std::vector<float> y(rows * columns, 1.0f);
    Gemm pairs{.rows = rows, .in = 2 * groups, .columns = columns, .x_stride = groups};
    pairs.pairs = x.as<uint32_t>();
    pairs.panels = panels.as<uint16_t>();
    pairs.y = y.data();
    pairs.y_stride = columns;
    kernels.gemm_bfloat16(pairs);
    EXPECT_EQ(y, std::vector<float>(rows * columns, 0.0f));
    const std::vector<float> ones(16, 1.0f), scales(rows, 1.0f);
    const std::vector<int32_t> zeros(rows + 16, 0);
    Int8Gemm int8{.rows = rows, .groups = groups, .columns = columns, .x = x.as<uint32_t>(), .x_stride = groups};
    int8.row_scale = scales.data();
    int8.zero = zeros.data();
    int8.panels = panels.as<int8_t>();
    int8.sums = zeros.data();
    int8.scale = ones.data();
    int8.bias = ones.data();
    int8.y = y.data();
    int8.y_stride = columns;
    kernels.gemm_int8(int8);
    EXPECT_EQ(y, std::vector<float>(rows * columns, 1.0f));
  }
}

}  // namespace
}  // namespace edgewise
