// The orders in which products are summed (kernels/cuda/ops/gemm.h), parts of float32 numbers, and the choice among the
// algorithms of a library.
#include "kernels/cuda/ops/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/ops/gemm_kernels.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/gemm_emulated.h"
#include "tests/cuda/linked_backend.h"
#include "tests/kernels/device_matrix.h"
#include "tests/kernels/random_floats.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::DeviceMatrix;
using edgewise::testing::MakeLinked;
using edgewise::testing::Random;
using testing::DeviceCopies;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeAlgorithm;
using testing::FakeLibrary;
using testing::Fault;
using testing::Get;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<__nv_bfloat16> RoundedOf(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> rounded;
  for (const float value : values) rounded.push_back(__float2bfloat16_rn(value));
  return rounded;
}

TEST(SumOrderTest, DependsOnColumnsPrecisionAndGpuAlone) {
  for (const int sm : {80, 86, 89, 90, 100, 103, 120}) {
    SCOPED_TRACE(sm);
    const bool fast = sm == 80 || sm == 90 || sm == 100 || sm == 103;
    for (const int64_t in : {1, 63, 64, 255, 256, 768, 1024, 1025, 3072, 16384}) {
      SCOPED_TRACE(in);
      EXPECT_EQ(OrderOf(in, true, sm).slices, 1);
      EXPECT_FALSE(OrderOf(in, true, sm).parts);
      const SumOrder order = OrderOf(in, false, sm);
      EXPECT_EQ(order.parts, fast && in >= 64);
      EXPECT_EQ(order.slices, in < 256 ? 1 : std::max<int64_t>(2, (in + 511) / 512));
    }
  }
}

// y = x W^T in the order that gemm.h defines, as the emulator rounds.
template <typename T>
std::vector<float> ChainsOf(const GemmShape& shape, const std::vector<T>& weight, const std::vector<T>& x, int64_t rows,
                            const std::vector<float>& before) {
  const auto value = [](T element) {
    if constexpr (sizeof(T) == 2) return __bfloat162float(element);
    if constexpr (sizeof(T) == 4) return element;
  };
  std::vector<float> y;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < shape.out; ++o) {
      float total = 0.0f;
      for (int64_t s = 0; s < shape.slices; ++s) {
        float sum = 0.0f;
        for (int64_t k = s * shape.in; k < (s + 1) * shape.in; ++k) {
          const float a = value(x[r * shape.slices * shape.in + k]), b = value(weight[o * shape.slices * shape.in + k]);
          sum = sizeof(T) == 2 ? sum + a * b : std::fma(a, b, sum);
        }
        total = s == 0 ? sum : total + sum;
      }
      y.push_back(before.empty() ? total : total + before[r * shape.out + o]);
    }
  }
  return y;
}

template <typename T>
void ExpectChains(GemmShape shape, const std::vector<T>& weight, const std::vector<T>& x, int64_t rows,
                  const std::vector<float>& before) {
  DeviceCopies memory;
  const std::vector<float> poison(static_cast<size_t>(rows * shape.out), NAN);
  float* y = memory.Put(before.empty() ? poison : before);
  ASSERT_EQ(ChainProduct(nullptr, shape, memory.Put(weight), memory.Put(x), shape.slices * shape.in, rows,
                         {.y = {y, shape.out}, .accumulate = !before.empty()}),
            cudaSuccess);
  EXPECT_EQ(BitsOf(Get(y, rows * shape.out)), BitsOf(ChainsOf(shape, weight, x, rows, before)));
}

TEST(ChainProductTest, SumsASliceInOneChainAndThenTheSlices) {
  for (const int64_t in : {8, 24, 64, 136}) {
    for (const int32_t slices : {1, 2, 5}) {
      for (const int64_t out : {4, 68, 132}) {
        for (const int64_t rows : {1, 17, 65}) {
          SCOPED_TRACE(std::to_string(slices) + " slices of " + std::to_string(in) + " to " + std::to_string(out) +
                       ", rows " + std::to_string(rows));
          const auto weight = Random(out * slices * in, 1), x = Random(rows * slices * in, 2);
          for (const bool accumulate : {false, true}) {
            const auto before = accumulate ? Random(rows * out, 3) : std::vector<float>();
            ExpectChains({out, in, slices, false}, weight, x, rows, before);
            ExpectChains({out, in, slices, true}, RoundedOf(weight), RoundedOf(x), rows, before);
          }
        }
      }
    }
  }
}

// The six of a number in a slice of `slice` columns, by Packing::kPartsOfX or kPartsOfW.
std::vector<std::vector<float>> SixOf(const std::vector<float>& numbers, Packing packing) {
  const auto columns = static_cast<int64_t>(numbers.size());  // a multiple of 8
  DeviceCopies memory;
  auto* to = memory.Put(std::vector<__nv_bfloat16>(static_cast<size_t>(6 * columns)));
  EXPECT_EQ(PackRows(nullptr, {memory.Put(numbers), 1, columns}, packing, columns, 1, to), cudaSuccess);
  const std::vector<__nv_bfloat16> packed = Get(to, 6 * columns);
  std::vector<std::vector<float>> six(numbers.size());
  for (int64_t j = 0; j < 6; ++j) {
    for (int64_t c = 0; c < columns; ++c) six[c].push_back(__bfloat162float(packed[j * columns + c]));
  }
  return six;
}

TEST(PackRowsTest, ThreePartsAddUpToTheNumber) {
  std::vector<float> numbers = {0.0f, -0.0f, 1.0f, 3.4028235e38f, -3.4028235e38f, 3.39e38f, 3.3953e38f, 1e-38f};
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0f, -1.9999999f, 1.9960938f, 1.5f + 0x1p-23f}) {
      numbers.push_back(std::ldexp(mantissa, exponent));
    }
  }
  for (int i = 0; i < 1000; ++i) numbers.push_back(std::bit_cast<float>(0x9E3779B9u * static_cast<uint32_t>(i)));
  std::erase_if(numbers, [](float number) { return !std::isfinite(number); });
  numbers.resize(numbers.size() / 8 * 8);
  const auto x = SixOf(numbers, Packing::kPartsOfX), w = SixOf(numbers, Packing::kPartsOfW);
  for (size_t i = 0; i < numbers.size(); ++i) {
    // x3 x1 x2 x2 x1 x1, w1 w3 w2 w1 w2 w1
    const std::vector<float> part = {x[i][5], x[i][3], x[i][0]};
    EXPECT_THAT(x[i], ElementsAre(part[2], part[0], part[1], part[1], part[0], part[0])) << numbers[i];
    EXPECT_THAT(w[i], ElementsAre(part[0], part[2], part[1], part[0], part[1], part[0])) << numbers[i];
    EXPECT_THAT(part, Each(::testing::Truly([](float p) { return std::isfinite(p); }))) << numbers[i];
    EXPECT_LE(std::abs(part[0]), 0x1.fep127f);
    EXPECT_NEAR(static_cast<double>(part[0]) + part[1] + part[2], static_cast<double>(numbers[i]), 0x1p-134)
        << numbers[i];
  }
}

TEST(PackRowsTest, SlicesLieOneBehindTheOtherAndEndInZeros) {
  constexpr int64_t kSlice = 16, kSlices = 3, kColumns = 37, kRows = 5, kStride = 41;
  for (const int64_t shift : {0, 1}) {  // of the first row from a 16-byte address
    std::vector<float> x(kRows * kStride + shift, -1.0f);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kColumns; ++c)
        x[shift + r * kStride + c] = static_cast<float>(1 + r + c);  // in bf16, too
    }
    DeviceCopies memory;
    const ConstMatrix rows(memory.Put(x) + shift, kRows, kColumns, kStride);
    for (const Packing packing : {Packing::kRounded, Packing::kPartsOfX}) {
      const int64_t products = packing == Packing::kRounded ? 1 : kPartProducts,
                    all = kRows * kSlices * products * kSlice;
      auto* to = memory.Put(std::vector<__nv_bfloat16>(static_cast<size_t>(all), {0xFFFF}));
      ASSERT_EQ(PackRows(nullptr, rows, packing, kSlice, kSlices, to), cudaSuccess);
      const std::vector<__nv_bfloat16> packed = Get(to, all);
      for (int64_t i = 0; i < all; ++i) {
        const int64_t r = i / (kSlices * products * kSlice), s = i / (products * kSlice) % kSlices;
        const int64_t j = i / kSlice % products, c = s * kSlice + i % kSlice;
        const bool first_part = products == 1 || j == 1 || j >= 4;
        EXPECT_EQ(__bfloat162float(packed[i]), first_part && c < kColumns ? static_cast<float>(1 + r + c) : 0.0f) << i;
      }
    }
  }
}

// Rows through Backend::Linear in float32 for many rows, without a bias.
std::vector<float> LinearOf(Backend& backend, const std::vector<float>& weight, int64_t in, const std::vector<float>& x,
                            Phase phase = Phase::kPrefill) {
  const auto rows = static_cast<int64_t>(x.size()) / in, out = static_cast<int64_t>(weight.size()) / in;
  const auto linear = *backend.PrepareLinear(weight, {}, out, in, Activation::kNone);
  const DeviceMatrix source(backend, x, rows, in),
      y(backend, std::vector<float>(static_cast<size_t>(rows * out), NAN), rows, out);
  EXPECT_TRUE(backend.Linear(*linear, source.view(), y.view(), false, phase).ok());
  return y.Host();
}

// However the tensor cores round, as far as is known of them.
class PartsErrorTest : public ::testing::TestWithParam<bool> {
 protected:
  PartsErrorTest() { emulator::SetMmaBf16CutsOff(GetParam()); }
  ~PartsErrorTest() override { emulator::SetMmaBf16CutsOff(false); }
};
INSTANTIATE_TEST_SUITE_P(CutsOff, PartsErrorTest, ::testing::Bool());

TEST_P(PartsErrorTest, IsLessThanThatOfOneChainOfFloat32) {
  const auto backend = MakeLinked("fp32");
  constexpr int64_t kRows = 17, kOut = 12;  // more than the emulated library takes
  for (const int64_t in : {64, 65, 100, 255, 256, 384, 511, 768, 1025, 1536, 3072, 4095, 8192, 11008, 16384}) {
    ASSERT_TRUE(OrderOf(in, false, 90).parts);
    const auto weight = Random(kOut * in, 1, 0.05f), x = Random(kRows * in, 2);
    const std::vector<float> got = LinearOf(*backend, weight, in, x);
    double parts = 0.0, chain = 0.0;
    for (int64_t i = 0; i < kRows * kOut; ++i) {
      double exact = 0.0;
      float sum = 0.0f;
      for (int64_t k = 0; k < in; ++k) {
        const float a = x[i / kOut * in + k], b = weight[i % kOut * in + k];
        exact += static_cast<double>(a) * b;
        sum = std::fma(a, b, sum);
      }
      parts += std::pow(got[i] - exact, 2);
      chain += std::pow(sum - exact, 2);
    }
    EXPECT_LT(parts, chain) << in;
    RecordProperty(std::to_string(in), std::to_string(std::sqrt(parts / chain)));
  }
}

TEST(PartsTest, TakeNumbersUpToTheLargest) {
  const auto backend = MakeLinked("fp32");
  constexpr int64_t kIn = 96, kOut = 8;
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<float> weight(kOut * kIn, 0.0f), x(6 * kIn, 0.0f);
  for (int64_t o = 0; o < kOut; ++o) weight[o * kIn + 7 * o] = o % 2 == 0 ? 1.0f : -0.7f;
  for (int64_t c = 0; c < kIn; ++c) {
    x[c] = kLargest;
    x[kIn + c] = -3.39e38f;
    x[2 * kIn + c] = 3.3953139e38f;  // between the largest bf16 and what is rounded to infinity
    x[3 * kIn + c] = 0x1.234567p-100f;
    x[4 * kIn + c] = 0x1p-149f;  // below all parts
    // Row 5 is zeros.
  }
  const std::vector<float> got = LinearOf(*backend, weight, kIn, x);
  for (int64_t i = 0; i < 6 * kOut; ++i) {
    const double want = static_cast<double>(x[i / kOut * kIn]) * (i % 2 == 0 ? 1.0f : -0.7f);
    EXPECT_NEAR(got[i], want, std::abs(want) * 0x1p-22 + 0x1p-133) << i;
  }
}

TEST(PartsTest, NumbersThatAreNotFiniteAreThoseOfFloat32) {
  const auto backend = MakeLinked("fp32");
  constexpr int64_t kIn = 100, kOut = 8;
  auto weight = Random(kOut * kIn, 1);
  for (int64_t o = 0; o < kOut; ++o) weight[o * kIn + 2] = o == 3 ? 0.0f : 1.0f;  // bf16's, so that two parts are zero
  weight[5 * kIn + 4] = -kFloatInfinity;
  std::vector<float> x = Random(5 * kIn, 2);
  x[2] = kFloatInfinity;
  x[kIn + 2] = -kFloatInfinity;
  x[2 * kIn + 2] = NAN;
  x[3 * kIn + 2] = x[3 * kIn + 4] = kFloatInfinity;
  const std::vector<float> got = LinearOf(*backend, weight, kIn, x);
  for (int64_t i = 0; i < 5 * kOut; ++i) {
    float want = 0.0f;
    for (int64_t k = 0; k < kIn; ++k) want = std::fma(x[i / kOut * kIn + k], weight[i % kOut * kIn + k], want);
    EXPECT_EQ(std::isnan(got[i]), std::isnan(want)) << i << ": " << got[i] << " for " << want;
    if (std::isinf(want)) {
      EXPECT_EQ(got[i], want) << i;
    } else if (std::isfinite(want)) {
      EXPECT_NEAR(got[i], want, 1e-4) << i;
    }
  }
}

TEST(PartsTest, AModelThatDoesNotFitSaysWhatTheyTake) {
  const auto backend = MakeLinked("fp32");
  constexpr int64_t kWide = 1024;
  const auto weight = Random(kWide * kWide, 1);
  const auto first = *backend->PrepareLinear(weight, {}, kWide, kWide, Activation::kNone);
  const std::string both = std::to_string(2 * 12 * kWide * kWide) + " bytes so far";
  emulator::SetMemoryLimit(emulator::LiveBytes() + (size_t{6} << 20));  // the float32 weights alone
  const absl::Status weights = backend->PrepareLinear(weight, {}, kWide, kWide, Activation::kNone).status();
  const absl::Status room = backend->Reserve(int64_t{1} << 24, 0);
  emulator::SetMemoryLimit(SIZE_MAX);
  EXPECT_EQ(weights.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(weights.message()), ::testing::HasSubstr(both));
  EXPECT_EQ(room.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(room.message()), ::testing::HasSubstr(std::to_string(12 * kWide * kWide) + " bytes so far"));
  EXPECT_TRUE(backend->PrepareLinear(weight, {}, kWide, kWide, Activation::kNone).ok());
}

// Slices of float32 chains, of 300 columns and four more.
TEST(OtherGpusTest, SumFloat32InSlices) {
  constexpr int64_t kIn = 300, kOut = 5, kSlice = 152;
  emulator::SetCapability(86);
  const auto backend = MakeLinked("fp32");
  emulator::SetCapability(90);
  const auto padded = [](const std::vector<float>& rows) {
    std::vector<float> wide;
    for (size_t i = 0; i < rows.size(); i += kIn) {
      wide.insert(wide.end(), rows.begin() + i, rows.begin() + i + kIn);
      wide.resize(wide.size() + 2 * kSlice - kIn, 0.0f);
    }
    return wide;
  };
  const auto weight = Random(kOut * kIn, 1);
  for (const int64_t rows : {3, 20}) {
    const auto x = Random(rows * kIn, 2);
    EXPECT_EQ(BitsOf(LinearOf(*backend, weight, kIn, x)),
              BitsOf(ChainsOf({kOut, kSlice, 2, false}, padded(weight), padded(x), rows, {})));
  }
}

// Products of one weight by a library, and by our own kernel.
class GemmTest : public ::testing::Test {
 protected:
  GemmTest() : device_(*Device::Open(0)) { library_.records = true; }
  ~GemmTest() override { testing::SetFakeLibrary(nullptr); }

  void Offer(std::vector<GemmLibrary::Algorithm> offered, std::vector<float> milliseconds, int64_t most_rows = 64) {
    library_.offered = std::move(offered);
    library_.most_rows = most_rows;
    library_.milliseconds = [=](const GemmLibrary::Algorithm& algorithm) { return milliseconds.at(algorithm[0]); };
    testing::SetFakeLibrary(&library_);
  }

  // The first `rows` rows of a product.
  std::vector<uint32_t> Product(const GemmShape& shape, int64_t rows, bool accumulate = false) {
    const auto gemm = *Gemm::Create(device_);
    DeviceCopies memory;
    const int64_t columns = shape.slices * shape.in;
    const auto weight = Random(shape.out * columns, 1), x = Random(rows * columns, 2);
    const void* w = shape.bf16 ? static_cast<const void*>(memory.Put(RoundedOf(weight))) : memory.Put(weight);
    const auto plan = *gemm->Plan(shape, w);
    const void* from = shape.bf16 ? static_cast<const void*>(memory.Put(RoundedOf(x))) : memory.Put(x);
    const std::vector<float> before = Random(SumsApart(shape, rows) * rows * shape.out, 3);
    float* y = memory.Put(before);
    library_.runs.clear();
    const int32_t sums = *gemm->Run(*plan, w, from, columns, rows, y, shape.out, accumulate);
    std::vector<float> all = Get(y, sums * rows * shape.out);
    for (int32_t s = 1; s < sums; ++s) {
      for (int64_t i = 0; i < rows * shape.out; ++i) all[i] += all[s * rows * shape.out + i];
    }
    all.resize(static_cast<size_t>(rows * shape.out));
    return BitsOf(all);
  }
  std::vector<uint32_t> OwnProduct(const GemmShape& shape, int64_t rows, bool accumulate = false) {
    Offer({}, {});
    return Product(shape, rows, accumulate);
  }
  // The algorithms that the last Product ran.
  std::set<uint64_t> Ran() const {
    std::set<uint64_t> names;
    for (const auto& [name, call] : library_.runs) names.insert(name);
    return names;
  }

  const std::shared_ptr<Device> device_;
  FakeLibrary library_;
};

constexpr GemmShape kShapes[] = {
    {12, 40, 1, true, 64}, {12, 48, 3, true, 64}, {12, 40, 1, false, 64}, {12, 40, 2, false, 64}};

TEST_F(GemmTest, AnAlgorithmWithOtherBytesIsLeftOut) {
  for (const GemmShape& shape : kShapes) {
    for (const int64_t rows : {1, 5, 16, 40}) {
      const auto want = OwnProduct(shape, rows);
      EXPECT_THAT(Ran(), IsEmpty());
      Offer({FakeAlgorithm(0, Fault::kSumsBackwards), FakeAlgorithm(1)}, {1.0f, 2.0f});
      EXPECT_EQ(Product(shape, rows), want);
      EXPECT_THAT(Ran(), ElementsAre(1));
      Offer({FakeAlgorithm(0, Fault::kSumsBackwards)}, {1.0f});
      EXPECT_EQ(Product(shape, rows), want);
      EXPECT_THAT(Ran(), IsEmpty()) << "our own kernel";
    }
  }
}

TEST_F(GemmTest, OneThatDiffersAtSomeNumbersOfRowsIsLeftOutOfTheirClasses) {
  const GemmShape& shape = kShapes[0];
  for (const int64_t from : {16, 17, 64}) {
    for (const int64_t rows : {3, 30}) {
      const auto want = OwnProduct(shape, rows);
      Offer({FakeAlgorithm(0, Fault::kSumsBackwards, from), FakeAlgorithm(1)}, {1.0f, 2.0f});
      EXPECT_EQ(Product(shape, rows), want);
      EXPECT_THAT(Ran(), ElementsAre(rows == 3 && from > 16 ? 0 : 1)) << from;
    }
  }
}

TEST_F(GemmTest, OneThatRefusesARowCountGivesWayToOurKernel) {
  for (const GemmShape& shape : kShapes) {
    for (const bool accumulate : {false, true}) {
      if (accumulate && shape.slices > 1) continue;
      const auto want = OwnProduct(shape, 20, accumulate);
      Offer({FakeAlgorithm(0, Fault::kRefuses, 20)}, {1.0f});  // of 17 to 64, but not one that a trial has
      EXPECT_EQ(Product(shape, 20, accumulate), want);
      EXPECT_THAT(Ran(), IsEmpty());
      Product(shape, 21, accumulate);
      EXPECT_THAT(Ran(), ElementsAre(0));
    }
  }
}

TEST_F(GemmTest, TheClockChoosesAndChangesNoByte) {
  for (const GemmShape& shape : kShapes) {
    for (const int64_t rows : {1, 16, 17, 64}) {
      const auto want = OwnProduct(shape, rows);
      for (const uint64_t fastest : {0, 1, 2}) {
        std::vector<float> milliseconds(3, 2.0f);
        milliseconds[fastest] = 1.0f;
        Offer({FakeAlgorithm(0), FakeAlgorithm(1), FakeAlgorithm(2)}, milliseconds);
        EXPECT_EQ(Product(shape, rows), want);
        EXPECT_THAT(Ran(), ElementsAre(fastest));
      }
    }
  }
}

// The sums of slices are made side by side for few outputs; for many, one slice is added to the other.
TEST_F(GemmTest, SlicesSideBySideAndInTurnHaveTheSameBytes) {
  constexpr int64_t kMany = 262148;
  const GemmShape few = {12, 8, 2, true, 16}, many = {kMany, 8, 2, true, 16};
  ASSERT_EQ(SumsApart(few, 3), 2);
  ASSERT_EQ(SumsApart(many, 3), 1);
  for (const GemmShape& shape : {few, many}) {
    const auto want = OwnProduct(shape, 3);
    Offer({FakeAlgorithm(0)}, {1.0f}, 16);
    EXPECT_EQ(Product(shape, 3), want);
    EXPECT_THAT(library_.runs, ::testing::SizeIs(shape.out == kMany ? 2 : 1));
  }
}

// A weight of zeros shows no order.
TEST_F(GemmTest, AWeightOfZerosChoosesNothing) {
  const GemmShape& shape = kShapes[0];
  Offer({FakeAlgorithm(0, Fault::kSumsBackwards)}, {1.0f});
  const auto gemm = *Gemm::Create(device_);
  DeviceCopies memory;
  const auto plan = *gemm->Plan(shape, memory.Put(std::vector<__nv_bfloat16>(12 * 40)));
  EXPECT_FALSE(plan->algorithms[0].has_value());
  const auto of_numbers = *gemm->Plan(shape, memory.Put(RoundedOf(Random(12 * 40, 1))));
  EXPECT_NE(plan, of_numbers);
}

}  // namespace
}  // namespace edgewise::cuda
