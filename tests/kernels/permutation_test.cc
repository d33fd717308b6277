// Draws that are made once per layer or token (docs/random-numbers.md, "Orders and tokens"): golden values and laws.
#include "kernels/draw/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/paths.h"

namespace edgewise {
namespace {

// tests/testdata/orders-v1.txt, written by an independent implementation (tests/reference/permutation.py): seed sample
// layer side stream window element normal sort_key.
TEST(OrderTest, MatchesTheGoldenFile) {
  std::ifstream file(tests::TestdataFolder() + "/orders-v1.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int normals = 0, sort_keys = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    RandomKey key;
    uint32_t stream, window, element;
    double normal;
    uint64_t sort_key;
    fields >> key.seed >> key.sample >> key.layer >> key.side >> stream >> window >> element >> normal >> sort_key;
    ASSERT_FALSE(fields.fail()) << line;
    EXPECT_NEAR(OrderNormal(key, window, element, stream), normal, 1e-14) << line;
    ++normals;
    if (stream != kStreamOrder || window != 0) continue;
    EXPECT_EQ(OrderUniform(key, element), sort_key) << line;
    ++sort_keys;
  }
  EXPECT_GE(normals, 100);
  EXPECT_GE(sort_keys, 30);
}

// From tests/reference/philox.py: the top 53 bits of words 0 and 1 of the block (position, 0, stream 4, 0).
TEST(TokenUniformTest, MatchesGoldenValues) {
  struct Golden {
    uint64_t seed;
    uint32_t position;
    uint64_t bits;
  };
  for (const Golden& golden :
       {Golden{0u, 0, 8519496611521350u}, Golden{1u, 5, 2319623689873517u},
        Golden{18446744073709551615u, 1023, 1564828517178142u}, Golden{881184705504249115u, 77, 4917893580892171u}}) {
    EXPECT_EQ(TokenUniform(golden.seed, golden.position), std::ldexp(static_cast<double>(golden.bits), -53));
  }
}

TEST(OrderTest, EveryCoordinateMatters) {
  const RandomKey key{5, 6, 7, 0};
  std::set<double> seen = {OrderNormal(key, 2, 3, kStreamOrder)};
  for (const RandomKey& other :
       {RandomKey{6, 6, 7, 0}, RandomKey{5, 7, 7, 0}, RandomKey{5, 6, 8, 0}, RandomKey{5, 6, 7, 1}}) {
    seen.insert(OrderNormal(other, 2, 3, kStreamOrder));
  }
  seen.insert(OrderNormal(key, 3, 3, kStreamOrder));
  seen.insert(OrderNormal(key, 2, 4, kStreamOrder));
  seen.insert(OrderNormal(key, 2, 3, kStreamRows));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(CosineOfTurnTest, AgreesWithTheLibrary) {
  for (uint32_t i = 0; i < 1u << 16; ++i) {
    const double u = static_cast<double>(i * 65521u) / 4294967296.0;
    EXPECT_NEAR(CosineOfTurn(u), std::cos(2.0 * M_PI * u), 1e-15) << u;
  }
  EXPECT_EQ(CosineOfTurn(0.0), 1.0);
  EXPECT_EQ(CosineOfTurn(0.5), -1.0);
  EXPECT_LE(std::abs(CosineOfTurn(4294967295.0 / 4294967296.0)), 1.0);
}

// The extreme words: u1 never is 0 or 1.
TEST(NormalOfTest, IsFiniteForEveryBlock) {
  EXPECT_NEAR(NormalOf({{0, 0, 0, 0}}), std::sqrt(66.0 * std::log(2.0)), 1e-14);
  EXPECT_NEAR(NormalOf({{0, 1u << 31, 0, 0}}), -std::sqrt(66.0 * std::log(2.0)), 1e-14);
  EXPECT_NEAR(NormalOf({{~0u, 0, 0, 0}}), std::sqrt(-2.0 * std::log1p(-std::ldexp(1.0, -33))), 1e-14);
}

// Moments and tails of a million numbers, within four standard errors.
TEST(OrderTest, NumbersAreNormal) {
  constexpr int kCount = 1 << 20;
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  int beyond_one = 0, beyond_three = 0;
  for (int i = 0; i < kCount; ++i) {
    const double z = OrderNormal({11, 3, 1, 0}, static_cast<uint32_t>(i >> 10), i & 1023, kStreamOrder);
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    beyond_one += z > 1.0;
    beyond_three += z < -3.0;
  }
  const double error = 4.0 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0.0, error);
  EXPECT_NEAR(squares / kCount, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(fourth / kCount, 3.0, error * std::sqrt(96.0));
  const auto tail = [](double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); };
  EXPECT_NEAR(static_cast<double>(beyond_one) / kCount, tail(1.0), error * std::sqrt(tail(1.0)));
  EXPECT_NEAR(static_cast<double>(beyond_three) / kCount, tail(3.0), error * std::sqrt(tail(3.0)));
}

}  // namespace
}  // namespace edgewise
