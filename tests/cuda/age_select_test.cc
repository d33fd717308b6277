// Ages as integers: monotone, parts nest in buckets, exact where the halves meet.
#include "kernels/cuda/attention/age_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/draw/draw.h"

namespace edgewise::cuda {
namespace {

constexpr double kBucketWidth = 1.0 / kAgeBuckets;

TEST(AgeTickTest, IsExactWhereBucketsAndPartsMeet) {
  EXPECT_EQ(AgeTick(0.0), 0u);
  EXPECT_EQ(AgeTick(-0.0), 0u);
  EXPECT_EQ(AgeTick(5e-324), 0u);
  for (const uint32_t bucket : {1u, 2u, 3u, 255u, 256u, 32767u, 32768u, 65534u, 65535u}) {
    const double edge = bucket * kBucketWidth;
    EXPECT_EQ(AgeBucket(AgeTick(edge)), bucket);
    EXPECT_EQ(AgePart(AgeTick(edge)), 0u);
    EXPECT_EQ(AgeBucket(AgeTick(std::nextafter(edge, 0.0))), bucket - 1);
    EXPECT_EQ(AgePart(AgeTick(std::nextafter(edge, 0.0))), 65535u);
    const double part_edge = edge + 77 * kBucketWidth / kAgeBuckets;
    EXPECT_EQ(AgePart(AgeTick(part_edge)), 77u);
    EXPECT_EQ(AgePart(AgeTick(std::nextafter(part_edge, 0.0))), 76u);
  }
}

TEST(AgeTickTest, AgesOfOneAndAboveAreInTheLastTick) {
  for (const double age : {std::nextafter(1.0, 0.0), 1.0, std::nextafter(1.0, 2.0), 2.0, 1e300}) {
    EXPECT_EQ(AgeTick(age), 0xFFFFFFFFu) << age;
  }
}

TEST(AgeTickTest, IsMonotoneAndBitsKeepTheOrder) {
  std::mt19937_64 random(1);
  std::vector<double> ages = {0.0, 5e-324, 1e-300, 0.5, 1.0, std::nextafter(1.0, 2.0)};
  for (int i = 0; i < 20000; ++i) {
    const double age = std::ldexp(static_cast<double>(random() >> 11), -53);
    ages.insert(ages.end(), {age, std::nextafter(age, 2.0), age * age * age, std::ldexp(age, -30)});
  }
  std::sort(ages.begin(), ages.end());
  for (size_t i = 0; i + 1 < ages.size(); ++i) {
    ASSERT_LE(AgeTick(ages[i]), AgeTick(ages[i + 1]));
    ASSERT_EQ(AgeBits(ages[i]) < AgeBits(ages[i + 1]), ages[i] < ages[i + 1]);
    ASSERT_EQ(AgeOfBits(AgeBits(ages[i])), ages[i]);
  }
}

// -ln(1 - u) of u = 0 is -0: no older than any other age.
TEST(AgeTickTest, TheYoungestAgeOfEveryLawComesFirst) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    const double youngest = EdgeAge(law, 0, 0.5f);
    EXPECT_EQ(AgeBits(youngest), 0u);
    EXPECT_LT(AgeBits(youngest), AgeBits(EdgeAge(law, 1, 1.0f)));
    EXPECT_EQ(AgeTick(youngest), 0u);
  }
}

TEST(AgeTickTest, AgesOfDrawnEdgesFillTheBucketsEvenly) {
  std::mt19937_64 random(2);
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    std::vector<int> sixteenths(16);
    int edges = 0;
    while (edges < 16000) {
      const float rate = std::ldexp(static_cast<float>(1 + random() % 1000), -10);
      const uint64_t uniform = random() >> 24;
      if (uniform >= EdgeThreshold(EdgeProbability(law, rate))) continue;
      ++sixteenths[AgeBucket(AgeTick(EdgeAge(law, uniform, rate))) >> 12];
      ++edges;
    }
    for (const int count : sixteenths)
      EXPECT_NEAR(count, 1000, 400);  // the density of law poisson falls from 1.3 to 0.7
  }
}

TEST(AgedEdgeTest, OrdersByAgeThenOrderAndItsBytesDoTheSame) {
  std::mt19937_64 random(3);
  const auto bytes = [](const AgedEdge& edge) {
    std::vector<uint32_t> all;
    for (int byte = 15; byte >= 0; --byte) all.push_back(ByteOf(edge, byte));
    return all;
  };
  for (int i = 0; i < 2000; ++i) {
    const auto shift = [&] { return static_cast<int>(random() % 64); };
    AgedEdge a = {random() >> shift(), random() >> shift()}, b = {random() >> shift(), random() >> shift()};
    if (i % 3 == 0) b.age_bits = a.age_bits;
    if (i % 7 == 0) b.order = a.order;
    EXPECT_EQ(IsBefore(a, b), bytes(a) < bytes(b));
    EXPECT_EQ(IsBefore(a, b) || IsBefore(b, a), a.age_bits != b.age_bits || a.order != b.order);
  }
}

TEST(RateRankTest, FallsWithTheRate) {
  EXPECT_EQ(RateRank(1.0f), 0u);
  float above = 1.0f;
  for (float rate = std::nextafter(1.0f, 0.0f); rate > 1e-30f; above = rate, rate *= 0.9f) {
    EXPECT_GT(RateRank(rate), RateRank(above));
    EXPECT_EQ(RateRank(std::nextafter(rate, 0.0f)), RateRank(rate) + 1);
  }
}

TEST(DigitTest, DigitsAreInTheOrderOfEdges) {
  std::mt19937_64 random(4);
  const auto digits = [](CapRule keep, const AgedEdge& edge) {
    std::vector<uint32_t> all;
    for (int digit = 0; digit < DigitsOf(keep); ++digit) all.push_back(DigitOf(keep, edge, digit));
    return all;
  };
  const auto rank = [&] { return RateRank(std::ldexp(static_cast<float>(1 + random() % 1000), -10)); };
  for (int i = 0; i < 2000; ++i) {
    AgedEdge a = {rank(), random() >> (random() % 64)}, b = {rank(), random() >> (random() % 64)};
    if (i % 3 == 0) b.age_bits = a.age_bits;
    EXPECT_EQ(IsBefore(a, b), digits(CapRule::kProbable, a) < digits(CapRule::kProbable, b));
    const double age = static_cast<double>(random() >> 11) * 0x1p-53;
    const uint32_t tick = AgeTick(age);
    EXPECT_EQ(digits(CapRule::kRandom, {AgeBits(age), a.order}),
              (std::vector<uint32_t>{AgeBucket(tick), AgePart(tick)}));
  }
}

TEST(AllowedDrawnTest, IsWhatAllowanceAndLedgerLeave) {
  const BudgetShare half = {kWholeShare / 2, 10, 20};
  const uint64_t remaining = 1000;
  EXPECT_EQ(AllowedDrawn(100, nullptr, half, 30), 70u);
  EXPECT_EQ(AllowedDrawn(100, nullptr, half, 100), 0u);
  EXPECT_EQ(AllowedDrawn(100, nullptr, half, 101), 0u);
  EXPECT_EQ(AllowedDrawn(kNoCap, nullptr, half, 5), kNoCap - 5);
  EXPECT_EQ(AllowedDrawn(kNoCap, &remaining, half, 30), 470u);
  EXPECT_EQ(AllowedDrawn(400, &remaining, half, 30), 370u);
  EXPECT_EQ(AllowedDrawn(kNoCap, &remaining, BudgetShare{kWholeShare, 0, 20}, 0), 980u);
}

}  // namespace
}  // namespace edgewise::cuda
