// A capped sample is fair: the edges kept are a draw at rate tau * p. With law bernoulli every drawn edge is then as
// likely to be kept as any other, whatever its query, key and rate; with a Poisson law its chance is
// (1 - exp(-tau p)) / (1 - exp(-p)).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "kernels/reference/reference.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::RunOn;
using testing::Shape;

constexpr int kTokens = 120;
constexpr int kSamples = 100;
constexpr double kKeptShare = 0.4;
constexpr double kMostErrors = 4.0;

// Chance that a drawn edge is younger than tau.
double KeptChance(Law law, double tau, double p) {
  return law == Law::kBernoulli ? tau : std::expm1(-tau * p) / std::expm1(-p);
}

// The tau at which as many of the drawn edges are expected as the cap keeps.
double TauOf(Law law, const std::vector<reference::Edge>& drawn, uint64_t cap) {
  double low = 0.0, high = 1.0;
  for (int step = 0; step < 40; ++step) {
    const double tau = (low + high) / 2;
    double expected = 0.0;
    for (const reference::Edge& edge : drawn) expected += KeptChance(law, tau, static_cast<double>(edge.rate));
    (expected < static_cast<double>(cap) ? low : high) = tau;
  }
  return high;
}

// Standard errors by which the number of edges kept of one group differs from what is expected of it. That all groups
// together keep what the cap allows makes a group vary less, by the share of the others.
class Group {
 public:
  void Add(double difference, double variance) {
    difference_ += difference;
    variance_ += variance;
  }
  double errors() const { return std::abs(difference_) / std::sqrt(variance_); }

 private:
  double difference_ = 0.0, variance_ = 0.0;
};

using Pair = std::pair<int32_t, int32_t>;  // query, key
using Select = std::function<std::set<Pair>(Case&, const std::vector<reference::Edge>& drawn, uint64_t cap)>;

// The most errors of any quarter of the queries, keys or rates.
double MostErrors(Law law, const Select& select) {
  std::vector<Group> groups(12);
  for (int sample = 0; sample < kSamples; ++sample) {
    Shape shape;
    shape.lengths = {kTokens};
    shape.heads = 1;
    shape.mean_rate = 0.3;
    shape.seed = 11;
    Case attention_case(shape);
    DrawnRows pattern;
    pattern.law = law;
    pattern.key.seed = static_cast<uint64_t>(sample);
    attention_case.AddProblems(pattern, 0);
    attention_case.AskForAll();
    const std::vector<reference::Edge> drawn =
        reference::DrawEdges(attention_case.inputs, attention_case.problems[0], 0);
    std::vector<float> rates;
    for (const reference::Edge& edge : drawn) rates.push_back(edge.rate);
    std::sort(rates.begin(), rates.end());
    const auto cap = static_cast<uint64_t>(kKeptShare * static_cast<double>(drawn.size()));
    const std::set<Pair> kept = select(attention_case, drawn, cap);
    EXPECT_EQ(kept.size(), cap);
    const double tau = TauOf(law, drawn, cap);
    double difference[12] = {}, variance[12] = {}, all = 0.0;
    for (const reference::Edge& edge : drawn) {
      const double chance = KeptChance(law, tau, static_cast<double>(edge.rate));
      all += chance * (1.0 - chance);
      const auto below = std::lower_bound(rates.begin(), rates.end(), edge.rate) - rates.begin();
      const int of[] = {edge.query * 4 / kTokens, 4 + edge.key * 4 / kTokens,
                        8 + static_cast<int>(below * 4 / static_cast<int64_t>(rates.size()))};
      for (int group : of) {
        difference[group] += (kept.contains({edge.query, edge.key}) ? 1.0 : 0.0) - chance;
        variance[group] += chance * (1.0 - chance);
      }
    }
    for (int g = 0; g < 12; ++g) groups[g].Add(difference[g], variance[g] * (1.0 - variance[g] / all));
  }
  double most = 0.0;
  for (const Group& group : groups) most = std::max(most, group.errors());
  return most;
}

TEST(CapFairnessTest, EveryDrawnEdgeIsKeptWithItsChance) {
  const auto backend = *CreateBackend({});
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet, Law::kPoissonMulti}) {
    const double errors = MostErrors(law, [&](Case& attention_case, const auto&, uint64_t cap) {
      const auto outcome = RunOn(*backend, attention_case, {EdgeCap{cap}});
      const HeadEdges& graph = outcome.reports[0].heads[0].graph;
      std::set<Pair> kept;
      for (int32_t i = 0; i < kTokens; ++i) {
        for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e) kept.insert({i, graph.keys[e]});
      }
      return kept;
    });
    EXPECT_LT(errors, kMostErrors) << static_cast<int>(law);
  }
}

// The test above sees ages that are 3 % too high for the last queries or keys, or for high rates.
TEST(CapFairnessTest, ABiasOfThreePercentWouldBeSeen) {
  for (int biased = 0; biased < 3; ++biased) {
    const double errors =
        MostErrors(Law::kBernoulli, [&](Case&, const std::vector<reference::Edge>& drawn, uint64_t cap) {
          std::vector<std::pair<double, Pair>> edges;
          for (const reference::Edge& edge : drawn) {
            const bool old = biased == 0   ? edge.query > kTokens / 2
                             : biased == 1 ? edge.key > kTokens / 2
                                           : edge.rate > 0.3f;
            edges.push_back({edge.age * (old ? 1.03 : 1.0), {edge.query, edge.key}});
          }
          std::sort(edges.begin(), edges.end());
          std::set<Pair> kept;
          for (uint64_t e = 0; e < cap; ++e) kept.insert(edges[e].second);
          return kept;
        });
    EXPECT_GT(errors, kMostErrors) << biased;
  }
}

}  // namespace
}  // namespace edgewise
