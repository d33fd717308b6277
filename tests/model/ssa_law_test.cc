// The law of SSA's sources: how often each falls into each window, against a simulation with another generator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "model/kinds/ssa.h"
#include "tests/model/pattern_cases.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using Counts = std::vector<std::vector<int>>;  // [window][position]: how often the position is a source

constexpr int32_t kLength = 40;
constexpr int32_t kWindows = 4;
constexpr int kDraws = 20000;
constexpr int kSimulated = 100000;

struct Law {
  const char* name;
  bool causal;
  double sigma;
};

void PrintTo(const Law& law, std::ostream* out) { *out << law.name; }

AttentionSpec Draw(const ModelConfig& config, int draw) {
  AttentionSpec choice = ChoiceOf(config, static_cast<uint64_t>(draw / 100));
  choice.sample = static_cast<uint32_t>(draw % 100);
  return choice;
}

Counts Drawn(const ModelConfig& config) {
  Counts counts(kWindows, std::vector<int>(kLength));
  const ModelSequence sequence = PatternSequence(kLength);
  for (int draw = 0; draw < kDraws; ++draw) {
    const AttentionSpec choice = Draw(config, draw);
    if (config.causal) {
      for (int32_t a = 0; a < kWindows; ++a) {
        for (int32_t source : SsaSources(choice, a)) ++counts[a][source];
      }
      continue;
    }
    const GroupedKeys groups = SsaGroups(choice, 0, {&sequence});
    for (int32_t a = 0; a < kWindows; ++a) {
      for (int64_t k = groups.key_offsets[a]; k < groups.key_offsets[a + 1]; ++k) {
        ++counts[a][groups.keys[k]];
      }
    }
  }
  return counts;
}

Counts Simulated(bool causal, double sigma) {
  Counts counts(kWindows, std::vector<int>(kLength));
  std::mt19937_64 random(123);
  std::normal_distribution<double> normal;
  constexpr int32_t kSize = kLength / kWindows;
  for (int draw = 0; draw < kSimulated; ++draw) {
    std::vector<int32_t> order;
    for (int32_t a = 0; a < kWindows; ++a) {
      if (causal || a == 0) {
        const int32_t places = causal ? (a + 1) * kSize : kLength;
        std::vector<double> keys(places);
        for (int32_t j = 0; j < places; ++j) keys[j] = j + sigma * kLength * normal(random);
        order.resize(places);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return keys[x] < keys[y]; });
      }
      for (int32_t place = a * kSize; place < (a + 1) * kSize; ++place) ++counts[a][order[place]];
    }
  }
  return counts;
}

// The largest difference of two shares, in standard errors; a draw more or less does not count.
double Distance(const Counts& drawn, const Counts& simulated) {
  double largest = 0.0;
  for (int32_t a = 0; a < kWindows; ++a) {
    for (int32_t j = 0; j < kLength; ++j) {
      const double p = static_cast<double>(drawn[a][j] + simulated[a][j]) / (kDraws + kSimulated);
      const double variance = p * (1.0 - p) * (1.0 / kDraws + 1.0 / kSimulated) + 1.0 / kDraws / kDraws;
      const double difference =
          static_cast<double>(drawn[a][j]) / kDraws - static_cast<double>(simulated[a][j]) / kSimulated;
      largest = std::max(largest, std::abs(difference) / std::sqrt(variance));
    }
  }
  return largest;
}

class SsaLawTest : public ::testing::TestWithParam<Law> {};

TEST_P(SsaLawTest, EverySourceFallsIntoEveryWindowAsOftenAsItShould) {
  const Law& law = GetParam();
  const ModelConfig config = PatternConfig(
      law.causal, kLength, {{"kind", "ssa"}, {"bias", "local"}, {"windows", kWindows}, {"sigma", law.sigma}});
  const Counts drawn = Drawn(config);
  EXPECT_LT(Distance(drawn, Simulated(law.causal, law.sigma)), 4.0);
  // The test sees a noise that is a tenth too large or too small.
  EXPECT_GT(Distance(drawn, Simulated(law.causal, 1.1 * law.sigma)), 4.0);
  EXPECT_GT(Distance(drawn, Simulated(law.causal, law.sigma / 1.1)), 4.0);
}

INSTANTIATE_TEST_SUITE_P(Laws, SsaLawTest,
                         ::testing::Values(Law{"narrow", false, 0.05}, Law{"wide", false, 0.25},
                                           Law{"causal_narrow", true, 0.05}, Law{"causal_wide", true, 0.25}),
                         [](const auto& info) { return info.param.name; });

// Bias none: every token is a source equally often, and so is every pair of them.
TEST(SsaLawTest, UniformSourcesAreUniform) {
  for (const bool causal : {false, true}) {
    const ModelConfig config = PatternConfig(causal, kLength, {{"kind", "ssa"}, {"bias", "none"}, {"keep", 10}});
    const ModelSequence sequence = PatternSequence(kLength);
    std::vector<double> share(kLength), neighbours(kLength - 1);
    for (int draw = 0; draw < kDraws; ++draw) {
      const GroupedKeys groups = SsaGroups(Draw(config, draw), 0, {&sequence});
      ASSERT_EQ(groups.keys.size(), 10u);
      for (size_t k = 0; k < 10; ++k) {
        share[groups.keys[k]] += 1.0 / kDraws;
        if (k > 0 && groups.keys[k] == groups.keys[k - 1] + 1) neighbours[groups.keys[k - 1]] += 1.0 / kDraws;
      }
    }
    const double both = 10.0 / kLength * 9.0 / (kLength - 1);
    for (double p : share) EXPECT_NEAR(p, 0.25, 4.0 * std::sqrt(0.25 * 0.75 / kDraws));
    for (double p : neighbours) EXPECT_NEAR(p, both, 4.0 * std::sqrt(both * (1.0 - both) / kDraws));
  }
}

// Two windows of a causal model draw apart: whether position 0 is in both is a matter of chance.
TEST(SsaLawTest, CausalWindowsAreIndependent) {
  const ModelConfig config =
      PatternConfig(true, kLength, {{"kind", "ssa"}, {"bias", "local"}, {"windows", kWindows}, {"sigma", 2.0}});
  double in_two = 0.0, in_three = 0.0, in_both = 0.0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const bool two = SsaSources(Draw(config, draw), 2)[0] == 0, three = SsaSources(Draw(config, draw), 3)[0] == 0;
    in_two += static_cast<double>(two) / kDraws;
    in_three += static_cast<double>(three) / kDraws;
    in_both += static_cast<double>(two && three) / kDraws;
  }
  const double expected = in_two * in_three;
  EXPECT_GT(expected, 0.005);
  EXPECT_NEAR(in_both, expected, 4.0 * std::sqrt(expected * (1.0 - expected) / kDraws));
}

}  // namespace
}  // namespace edgewise::testing
