// The random-number specification (docs/random-numbers.md): known answers and golden draws.
#include "kernels/draw/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

#include "kernels/draw/draw.h"
#include "tests/support/paths.h"

namespace edgewise {
namespace {

std::array<uint32_t, 4> Words(uint64_t key, PhiloxBlock counter) {
  const PhiloxBlock block = Philox4x32(key, counter);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// Random123's known-answer file, philox4x32 with 10 rounds.
TEST(PhiloxTest, GivesTheKnownAnswers) {
  using W = std::array<uint32_t, 4>;
  EXPECT_EQ(Words(0, {{0, 0, 0, 0}}), (W{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Words(~uint64_t{0}, {{~0u, ~0u, ~0u, ~0u}}), (W{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Words(0x299f31d0a4093822, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
            (W{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// tests/testdata/random-numbers-v1.txt: seed sample layer head side query key uniform, written by an independent
// implementation (tests/reference/philox.py).
TEST(PairUniformTest, MatchesTheGoldenFile) {
  std::ifstream file(tests::TestdataFolder() + "/random-numbers-v1.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int checked = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    RandomKey key;
    uint32_t head, query, position;
    uint64_t uniform;
    fields >> key.seed >> key.sample >> key.layer >> head >> key.side >> query >> position >> uniform;
    ASSERT_FALSE(fields.fail()) << line;
    EXPECT_EQ(PairUniform(key, head, query, position), uniform) << line;
    ++checked;
  }
  EXPECT_GE(checked, 200);
}

TEST(PairUniformTest, EveryCoordinateMatters) {
  const RandomKey key{5, 6, 7, 0};
  const uint64_t base = PairUniform(key, 1, 2, 3);
  EXPECT_NE(PairUniform({6, 6, 7, 0}, 1, 2, 3), base);
  EXPECT_NE(PairUniform({5, 7, 7, 0}, 1, 2, 3), base);
  EXPECT_NE(PairUniform({5, 6, 8, 0}, 1, 2, 3), base);
  EXPECT_NE(PairUniform({5, 6, 7, 1}, 1, 2, 3), base);
  EXPECT_NE(PairUniform(key, 2, 2, 3), base);
  EXPECT_NE(PairUniform(key, 1, 3, 3), base);
  EXPECT_NE(PairUniform(key, 1, 2, 4), base);
}

// Every byte of every block belongs to exactly one position.
TEST(HighByteTest, AddressesAreABijection) {
  std::array<int, 256> seen{};
  for (uint32_t position = 0; position < 256; ++position) {
    const ByteAddress address = HighByteAddress(position);
    ASSERT_LT(address.counter, 16u);
    ++seen[address.counter * 16 + address.index];
  }
  for (int count : seen) EXPECT_EQ(count, 1);
}

TEST(DrawTest, SeriesAgreeWithTheLibrary) {
  for (double p = 0.0; p <= 1.0; p += 1.0 / 512) EXPECT_NEAR(OneMinusExp(p), -std::expm1(-p), 2e-16);
  for (double u = 0.0; u < 1.0; u += 1.0 / 1024) EXPECT_NEAR(NegLogOneMinus(u), -std::log1p(-u), 2e-15);
  EXPECT_NEAR(NegLogOneMinus(1.0 - 1.0 / kPairUniformScale), 40 * std::log(2.0), 1e-13);
}

TEST(DrawTest, MultiplicitiesFollowThePoissonLaw) {
  for (const double rate : {0.01, 0.3, 1.0}) {
    double tail = 1.0, term = std::exp(-rate);
    for (int k = 1; k <= 5; ++k) {
      tail -= term;  // P(Poisson >= k)
      term *= rate / k;
      const uint64_t edge = static_cast<uint64_t>(tail * kPairUniformScale);
      if (edge < 100) break;
      EXPECT_GE(EdgeMultiplicity(edge - 50, rate), k) << rate;
      EXPECT_LT(EdgeMultiplicity(edge + 50, rate), k) << rate;
    }
  }
}

TEST(DrawTest, AnEdgeIsYoungerThanOneAndAnythingElseIsNot) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    for (const float p : {1e-6f, 0.01f, 0.37f, 1.0f}) {
      const uint64_t threshold = EdgeThreshold(EdgeProbability(law, p));
      EXPECT_LE(EdgeAge(law, threshold - 1, p), 1.0 + 1e-9);
      if (threshold + 2 < static_cast<uint64_t>(kPairUniformScale)) {
        EXPECT_GE(EdgeAge(law, threshold + 1, p), 1.0 - 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace edgewise
