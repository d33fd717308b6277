// The allowance of a layer, against arithmetic with 128 bits.
#include "kernels/draw/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace edgewise {
namespace {

__extension__ typedef unsigned __int128 Wide;

// Numbers near every power of two, and random ones of every size.
std::vector<uint64_t> Values(uint64_t seed) {
  std::vector<uint64_t> values = {0, 3, 10, 300, ~uint64_t{0}, ~uint64_t{0} / 3};
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    values.insert(values.end(), {power - 1, power, power + 1});
  }
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) values.push_back(random() >> random() % 64);
  return values;
}

TEST(BudgetTest, MultiplyShareIsTheProductRoundedDown) {
  for (const uint64_t a : Values(1)) {
    for (const uint64_t b : Values(2)) {
      const uint64_t share = std::min(b, kWholeShare);
      ASSERT_EQ(MultiplyShare(a, share), static_cast<uint64_t>(Wide{a} * share >> 63)) << a << " * " << share;
    }
  }
}

TEST(BudgetTest, AllowanceIsThePartWithinWhatIsForced) {
  EXPECT_EQ(LayerAllowance(100, {kWholeShare, 0, 0}), 100u);
  EXPECT_EQ(LayerAllowance(100, {kWholeShare / 2, 0, 0}), 50u);
  EXPECT_EQ(LayerAllowance(101, {kWholeShare / 2, 0, 0}), 50u);
  EXPECT_EQ(LayerAllowance(100, {kWholeShare / 2, 60, 0}), 60u) << "what is forced here stays";
  EXPECT_EQ(LayerAllowance(100, {kWholeShare / 2, 60, 40}), 60u);
  EXPECT_EQ(LayerAllowance(100, {kWholeShare / 2, 0, 70}), 30u) << "what is forced later is left";
  EXPECT_EQ(LayerAllowance(100, {kWholeShare, 0, 100}), 0u);
  EXPECT_EQ(LayerAllowance(0, {kWholeShare, 0, 0}), 0u);
  EXPECT_EQ(LayerAllowance(~uint64_t{0}, {kWholeShare, 0, 0}), ~uint64_t{0});
}

TEST(BudgetTest, AllowanceKeepsItsLimits) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 100000; ++trial) {
    const uint64_t remaining = random() >> random() % 64;
    BudgetShare share;
    share.fraction = random() % (kWholeShare + 1);
    share.forced_here = remaining == 0 ? 0 : random() % remaining >> random() % 8;
    share.forced_later = (remaining - share.forced_here) >> random() % 8;
    const uint64_t allowance = LayerAllowance(remaining, share);
    ASSERT_GE(allowance, share.forced_here);
    ASSERT_LE(allowance, remaining - share.forced_later);
    const uint64_t part = static_cast<uint64_t>(Wide{remaining} * share.fraction >> 63);
    ASSERT_EQ(allowance, std::min(std::max(part, share.forced_here), remaining - share.forced_later));
  }
}

}  // namespace
}  // namespace edgewise
