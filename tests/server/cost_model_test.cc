#include "server/request/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace edgewise::server {
namespace {

// Requests like those of a server: lengths over three decades, densities between 1 % and all, up to 16 samples.
class Requests {
 public:
  Demand Next() {
    const double tokens = std::exp(uniform_(random_) * 7.0), samples = 1.0 + std::floor(uniform_(random_) * 16.0);
    const double pairs = 8.0 * tokens * tokens;
    return {samples, samples * tokens, samples * pairs, samples * pairs * (0.01 + 0.99 * uniform_(random_))};
  }
  // Between 1 / 1.1 and 1.1.
  double Noise() { return std::exp((uniform_(random_) - 0.5) * 0.19); }

 private:
  std::mt19937 random_{7};
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
};

double Truth(const Demand& d) { return 5e-5 + 1e-5 * d.passes + 3e-6 * d.tokens + 1e-10 * d.pairs + 2e-9 * d.edges; }

TEST(CostModelTest, NothingIsKnownBeforeTheFirstObservation) {
  CostModel model;
  EXPECT_EQ(model.Predict({1, 100, 1e4, 1e4}), 0.0);
  EXPECT_EQ(model.LikelyEdges(100, 1e4), 1e4);
}

TEST(CostModelTest, OneObservationIsPredicted) {
  CostModel model;
  model.Observe({1, 100, 1e4, 1e3}, 0.004);
  EXPECT_NEAR(model.Predict({1, 100, 1e4, 1e3}), 0.004, 1e-8);
}

TEST(CostModelTest, RecoversALinearCostWithinItsNoise) {
  CostModel model;
  Requests requests;
  for (int i = 0; i < 400; ++i) {
    const Demand demand = requests.Next();
    model.Observe(demand, Truth(demand) * requests.Noise());
  }
  for (int i = 0; i < 200; ++i) {
    const Demand demand = requests.Next();
    EXPECT_NEAR(model.Predict(demand) / Truth(demand), 1.0, 0.06);
  }
}

// Requests of which every tenth has a cap of 1/8. `cost`: seconds of one.
template <typename Cost>
void ObserveCaps(CostModel& model, Cost cost) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 400; ++i) {
    const double tokens = 100.0 + 900.0 * uniform(random), pairs = 8.0 * tokens * tokens;
    const Demand demand = {1, tokens, pairs, pairs * (i % 10 == 0 ? 0.00625 : 0.05)};
    model.Observe(demand, cost(demand) * std::exp(0.1 * uniform(random)));
  }
}

TEST(CostModelTest, RequestsThatVaryInCapTellEdgesFromPairs) {
  const Demand whole = {1, 500, 2e6, 1e5}, capped = {1, 500, 2e6, 1e5 / 16};
  const auto by_edges = [](const Demand& d) { return 1e-6 * d.tokens + 2e-8 * d.edges; };
  const auto by_pairs = [](const Demand& d) { return 1e-6 * d.tokens + 1e-9 * d.pairs; };
  CostModel edges, pairs;
  ObserveCaps(edges, by_edges);
  ObserveCaps(pairs, by_pairs);
  EXPECT_NEAR(edges.Predict(capped) / edges.Predict(whole), by_edges(capped) / by_edges(whole), 0.03);
  EXPECT_NEAR(pairs.Predict(capped) / pairs.Predict(whole), 1.0, 0.03);
}

// Then come a thousand requests of one density.
TEST(CostModelTest, WhatLaterRequestsLeaveOpenAnAnchorDecides) {
  const Demand whole = {1, 500, 2e6, 1e5}, capped = {1, 500, 2e6, 1e5 / 16};
  for (const double of_edges : {0.0, 1.0}) {
    const auto cost = [of_edges](const Demand& d) {
      return 1e-6 * d.tokens + of_edges * 2e-8 * d.edges + (1.0 - of_edges) * 1e-9 * d.pairs;
    };
    CostModel model;
    for (const double tokens : {8.0, 32.0, 128.0, 512.0}) {
      for (const double density : {0.05, 0.00625}) {
        const Demand demand = {1, tokens, 8 * tokens * tokens, 8 * tokens * tokens * density};
        model.Observe(demand, cost(demand));
      }
    }
    model.Anchor();
    std::mt19937 random(12);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (int i = 0; i < 1000; ++i) {  // on a machine that is slower now
      const double tokens = 100.0 + 900.0 * uniform(random), pairs = 8.0 * tokens * tokens;
      const Demand demand = {1, tokens, pairs, 0.05 * pairs};
      model.Observe(demand, 3.0 * cost(demand) * std::exp(0.1 * (uniform(random) - 0.5)));
    }
    EXPECT_NEAR(model.Predict(whole) / cost(whole), 3.0, 0.06);
    EXPECT_NEAR(model.Predict(capped) / model.Predict(whole), cost(capped) / cost(whole), 0.05) << of_edges;
  }
}

// One request in five, from the warm-up on.
TEST(CostModelTest, PairsWhoseChancesAreAddedUpHaveACostOfTheirOwn) {
  const auto cost = [](const Demand& d) { return Truth(d) + 3e-10 * d.summed; };
  CostModel model;
  Requests requests;
  for (int i = 0; i < 400; ++i) {
    Demand demand = requests.Next();
    if (i % 5 == 0) demand.summed = demand.pairs;
    model.Observe(demand, cost(demand) * requests.Noise());
  }
  for (int i = 0; i < 200; ++i) {
    Demand demand = requests.Next();
    EXPECT_NEAR(model.Predict(demand) / cost(demand), 1.0, 0.06);
    demand.summed = demand.pairs;
    EXPECT_NEAR(model.Predict(demand) / cost(demand), 1.0, 0.06);
    EXPECT_NEAR(model.Predict(demand.OfOneSample()) / cost(demand.OfOneSample()), 1.0, 0.06);
  }
}

TEST(CostModelTest, SpreadIsWhatHardlyAnObservationExceeds) {
  CostModel model;
  EXPECT_EQ(model.Spread(), 1.0);
  std::mt19937 random(13);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const Demand demand = {1, 100, 1e4, 1e3};
  int beyond = 0;
  for (int i = 0; i < 4000; ++i) {
    const double seconds = 0.01 * (uniform(random) < 0.1 ? 1.5 : 1.0);  // one in ten is half as long again
    if (i >= 2000) beyond += seconds > model.Spread() * model.Predict(demand) ? 1 : 0;
    model.Observe(demand, seconds);
  }
  EXPECT_LE(beyond, 50) << "of 2000";
  EXPECT_GT(model.Spread(), 1.2);
  EXPECT_LT(model.Spread(), 2.0);
}

TEST(CostModelTest, MoreNeverCostsLess) {
  CostModel model;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 50; ++i) {  // seconds that have nothing to do with the demand
    model.Observe({1, 100 * uniform(random), 1e4 * uniform(random), 1e3 * uniform(random)}, 1e-3 * uniform(random));
    const Demand demand = {3, 50, 5e3, 500};
    const double seconds = model.Predict(demand);
    EXPECT_GT(seconds, 0.0);
    EXPECT_GE(model.Predict({4, 50, 5e3, 500}), seconds);
    EXPECT_GE(model.Predict({3, 60, 5e3, 500}), seconds);
    EXPECT_GE(model.Predict({3, 50, 6e3, 500}), seconds);
    EXPECT_GE(model.Predict({3, 50, 5e3, 600}), seconds);
  }
}

TEST(CostModelTest, FollowsAMachineThatGetsSlower) {
  CostModel model;
  Requests requests;
  for (int i = 0; i < 1000; ++i) {
    const Demand demand = requests.Next();
    model.Observe(demand, Truth(demand));
  }
  for (int i = 0; i < 400; ++i) {  // eight half-lives
    const Demand demand = requests.Next();
    model.Observe(demand, 2.0 * Truth(demand));
  }
  for (int i = 0; i < 100; ++i) {
    const Demand demand = requests.Next();
    EXPECT_NEAR(model.Predict(demand) / Truth(demand), 2.0, 0.25);
  }
}

TEST(CostModelTest, LikelyEdgesAreTheNineTenthsQuantileOfALength) {
  CostModel model;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.0, 0.2);
  for (int i = 0; i < 5000; ++i) {
    model.ObserveEdges(100, 1e4, 1e4 * uniform(random));
    model.ObserveEdges(1000, 1e6, 1e6 * 0.5);
  }
  EXPECT_NEAR(model.LikelyEdges(100, 1e4), 0.18 * 1e4, 0.02 * 1e4);
  EXPECT_NEAR(model.LikelyEdges(1000, 1e6), 0.5 * 1e6, 0.06 * 1e6);
  EXPECT_EQ(model.LikelyEdges(10, 100), 100);  // nothing seen of this length
}

TEST(CostModelTest, LikelySamplesAreTheNineTenthsQuantileOfATolerance) {
  CostModel model;
  EXPECT_EQ(model.LikelySamples(0.02, 64), 64) << "nothing seen";
  for (int i = 0; i < 5000; ++i) {
    model.ObserveSamples(0.02, i % 5 == 0 ? 30 : 4);  // one in five needs more
    model.ObserveSamples(0.3, i % 20 == 0 ? 30 : 4);
  }
  EXPECT_EQ(model.LikelySamples(0.02, 64), 32) << "30, in waves of 4, 4, 8 and 16";
  EXPECT_EQ(model.LikelySamples(0.02, 20), 20);
  EXPECT_EQ(model.LikelySamples(0.3, 64), 4);
  EXPECT_EQ(model.LikelySamples(0.26, 64), 8) << "of the same place, but surer";
  EXPECT_EQ(model.LikelySamples(0.3, 2), 2);
  EXPECT_EQ(model.LikelySamples(0.001, 64), 64) << "nothing seen of this tolerance";
}

TEST(CostModelTest, LeastSecondsAreThoseOfTheCheapestOfItsSize) {
  CostModel model;
  EXPECT_EQ(model.LeastSeconds(100), 0.0) << "nothing seen";
  model.ObserveRequest({}, 100, 0.0);
  EXPECT_EQ(model.LeastSeconds(100), 0.0) << "nothing predicted";
  model.ObserveRequest({}, 100, 0.02);
  model.ObserveRequest({}, 100, 0.01);
  model.ObserveRequest({}, 100, 0.04);
  EXPECT_NEAR(model.LeastSeconds(200), 0.02, 1e-4);
  for (int i = 0; i < 2000; ++i) model.ObserveRequest({}, 100, 0.04);
  EXPECT_NEAR(model.LeastSeconds(100), 0.04, 1e-3) << "long ago";
}

TEST(CostModelTest, CapacityIsThatOfTheUsualRequest) {
  CostModel model;
  const Demand small = {1, 10, 100, 10}, large = {1, 1000, 1000000, 100000};
  for (int i = 0; i < 100; ++i) {
    model.Observe(small, 0.01);
    model.Observe(large, 0.5);
  }
  EXPECT_EQ(model.Capacity(), 0.0) << "nobody has asked";
  model.ObserveRequest(small, 0.0, 0.0);
  EXPECT_NEAR(model.Capacity(), 100.0, 1.0);
  for (int i = 0; i < 1000; ++i) model.ObserveRequest(large, 0.0, 0.0);
  EXPECT_NEAR(model.Capacity(), 2.0, 0.1);
  CostModel unknown;
  unknown.ObserveRequest(small, 0.0, 0.0);
  EXPECT_EQ(unknown.Capacity(), 0.0) << "nothing was measured";
}

TEST(CostModelTest, AGenerationTakesItsLikelyTokens) {
  CostModel model;
  for (int i = 0; i < 200; ++i) {
    model.ObserveToken(0.01);
    model.ObserveLength(25, 100);
  }
  EXPECT_NEAR(model.PredictGeneration(0, 400), 1.0, 0.01) << "a quarter of those that it may generate";
  EXPECT_GT(model.PredictGeneration(100, 400), 1.05);
}

TEST(CostModelTest, LikelyEdgesNeverExceedThePairs) {
  CostModel model;
  for (int i = 0; i < 1000; ++i) model.ObserveEdges(100, 1e4, 1e4);
  EXPECT_LE(model.LikelyEdges(100, 1e4), 1e4);
}

TEST(CostModelTest, LayersOfAStepOfTokensAreThoseThatTheSlowestOfLateLeavesTimeFor) {
  CostModel costs;
  EXPECT_EQ(costs.TokenLayers(0.02), 0.0);
  costs.ObserveTokenLayer(0.004);
  EXPECT_DOUBLE_EQ(costs.TokenLayers(0.02), 5.0);
  costs.ObserveTokenLayer(0.001);
  EXPECT_LT(costs.TokenLayers(0.02), 6.0) << "the slower one was just before";
  for (int step = 0; step < 50; ++step) costs.ObserveTokenLayer(0.001);
  EXPECT_DOUBLE_EQ(costs.TokenLayers(0.02), 20.0);
}

}  // namespace
}  // namespace edgewise::server
