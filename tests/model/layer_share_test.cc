// How a budget is shared among layers (docs/model-format.md, budget_shares).
#include <gtest/gtest.h>

#include <random>

#include "model/forward/edge_budget.h"

namespace edgewise {
namespace {

uint64_t Part(uint64_t remaining, const std::vector<double>& shares, int32_t layer) {
  return LayerAllowance(remaining, ShareOf(shares, layer, 0, 0));
}

TEST(LayerShareTest, ExactRatiosAreExact) {
  EXPECT_EQ(Part(300, {1, 1, 1}, 0), 100u);
  EXPECT_EQ(Part(200, {1, 1, 1}, 1), 100u);
  EXPECT_EQ(Part(100, {1, 1, 1}, 2), 100u);
  EXPECT_EQ(Part(300, {0.1, 0.1, 0.1}, 0), 100u) << "alike, though 0.1 + 0.1 + 0.1 is not 0.3";
  for (uint64_t whole = 1; whole <= 64; ++whole) {
    for (uint64_t part = 1; part <= whole; ++part) {
      const std::vector<double> shares = {static_cast<double>(part), static_cast<double>(whole - part)};
      for (const uint64_t times : {uint64_t{1}, uint64_t{7}, uint64_t{1000003}, (uint64_t{1} << 57) - 1}) {
        ASSERT_EQ(Part(whole * times, shares, 0), part * times) << part << "/" << whole << " of " << whole * times;
      }
    }
  }
}

TEST(LayerShareTest, TheFractionIsTheLeastThatIsNotBelowTheRatio) {
  __extension__ typedef unsigned __int128 Wide;
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 10000; ++trial) {
    const uint64_t first = 1 + random() % 1000000, rest = 1 + (random() >> random() % 64) % 1000000000;
    const BudgetShare share = ShareOf({static_cast<double>(first), static_cast<double>(rest)}, 0, 5, 6);
    const Wide exact = Wide{first} << 63;  // of first + rest
    ASSERT_GE(Wide{share.fraction} * (first + rest), exact);
    ASSERT_LT(Wide{share.fraction - 1} * (first + rest), exact);
    ASSERT_EQ(share.forced_here, 5u);
    ASSERT_EQ(share.forced_later, 6u);
  }
}

TEST(LayerShareTest, TheLastLayerHasAllThatIsLeft) {
  EXPECT_EQ(ShareOf({3, 1e9, 1e-300}, 2, 0, 0).fraction, kWholeShare);
  EXPECT_EQ(Part(kNoCap, {1, 1e-9}, 1), kNoCap);
}

TEST(LayerShareTest, AShareThatIsAlmostNothingIsNothingOfALittle) {
  EXPECT_EQ(ShareOf({1e-300, 1e9}, 0, 0, 0).fraction, 1u) << "rounded up";
  EXPECT_EQ(Part(1000000, {1e-300, 1e9}, 0), 0u);
  EXPECT_LE(Part(1000000, {1e9, 1e-9}, 0), 1000000u);
}

}  // namespace
}  // namespace edgewise
