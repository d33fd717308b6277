// The laws of heads that are drawn by events, statistically: edges, multiplicities and ages of many seeds agree with
// theory, pairs are independent, and rates that were wrong by a hundredth would show. EDGEWISE_LAW_SEEDS=20000 takes
// longer and sees smaller errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <random>
#include <set>

#include "kernels/backend.h"
#include "kernels/reference/reference.h"

namespace edgewise {
namespace {

constexpr int kTokens = 96, kRank = 16, kBins = 8;
constexpr double kStandardErrors = 4.5;

struct LawCase {
  Law law;
  double density;  // mean rate
  double spread;   // of the sizes of keys: large ones make some heavy
  float exploration;
};
void PrintTo(const LawCase& c, std::ostream* out) {
  constexpr const char* kLaws[] = {"bernoulli", "poisson_set", "poisson_multi"};
  *out << kLaws[static_cast<int>(c.law)] << ", density " << c.density << ", spread " << c.spread << ", exploration "
       << c.exploration;
}

int Seeds() {
  const char* seeds = std::getenv("EDGEWISE_LAW_SEEDS");
  return seeds == nullptr ? 4000 : std::max(1000, std::atoi(seeds));
}

class EventsLawTest : public ::testing::TestWithParam<LawCase> {
 protected:
  EventsLawTest() : backend_(*CreateBackend({"cpu", 1, "auto", "fp32"})) {
    const LawCase& c = GetParam();
    std::mt19937_64 random(17);
    std::normal_distribution<double> normal;
    for (int i = 0; i < kTokens; ++i) {
      const double sizes[2] = {std::exp(0.5 * c.spread * normal(random)), std::exp(c.spread * normal(random))};
      for (int t = 0; t < kRank; ++t) {
        x_.push_back(static_cast<float>(sizes[0] * std::max(0.0, 0.25 + 0.25 * normal(random))));
        y_.push_back(static_cast<float>(sizes[1] * std::max(0.0, 0.25 + 0.25 * normal(random))));
      }
    }
    double sum = 0.0;
    for (int i = 0; i < kTokens; ++i) {
      for (int j = 0; j < kTokens; ++j) sum += MembershipDot(&x_[i * kRank], &y_[j * kRank], kRank);
    }
    const auto scale = static_cast<float>(c.density * kTokens * kTokens / sum);
    for (float& value : x_) value *= scale;
    qkv_.assign(kTokens * 16, 0.5f);
    bounds_.assign(kTokens, 1e6f);
    inputs_.q = inputs_.k = inputs_.v = ConstMatrix(qkv_.data(), kTokens, 16);
    inputs_.memberships = {x_.data(), y_.data(), bounds_.data(), bounds_.data(), kTokens, kRank};
    inputs_.num_heads = 1;
    inputs_.head_dim = 16;
    for (int i = 0; i < kTokens; ++i) {
      for (int j = 0; j < kTokens; ++j) {
        const float dot = MembershipDot(&x_[i * kRank], &y_[j * kRank], kRank);
        rates_.push_back(static_cast<double>(EdgeRate(dot, c.exploration)));
        chances_.push_back(EdgeProbability(c.law, static_cast<float>(rates_.back())));
      }
    }
    drawn_ = {.law = c.law, .exploration = c.exploration, .key = {.layer = 3}, .way = DrawWay::kEvents};
  }

  // The graph of a seed.
  const HeadEdges& Draw(int seed, std::vector<EdgeCap> caps = {}) {
    drawn_.key.seed = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(seed + 1);
    drawn_.key.sample = static_cast<uint32_t>(seed % 7);
    AttentionProblem problem;
    problem.tokens = kTokens;
    problem.pattern = drawn_;
    problem.cap = caps.empty() ? -1 : 0;
    problem.report = &report_;
    report_.wanted.graph = true;
    out_.resize(qkv_.size());
    EXPECT_TRUE(backend_->Attend(inputs_, {&problem, 1}, caps, Matrix(out_.data(), kTokens, 16)).ok());
    return report_.heads[0].graph;
  }

  std::unique_ptr<Backend> backend_;
  std::vector<float> x_, y_, qkv_, bounds_, out_;
  std::vector<double> rates_, chances_;  // of pairs
  AttentionInputs inputs_;
  DrawnRows drawn_;
  AttentionReport report_;
};

// Sums over pairs of equal rank of rates.
struct Bin {
  double edges = 0.0, mean = 0.0, variance = 0.0;
  double counts = 0.0, count_mean = 0.0;  // with multiplicities
};

TEST_P(EventsLawTest, RatesOfEverySizeAreRightToAHundredth) {
  const int seeds = Seeds();
  constexpr int kPairs = kTokens * kTokens;
  std::vector<double> edges(kPairs, 0.0), counts(kPairs, 0.0);
  double squares = 0.0, all = 0.0, variance = 0.0;
  for (int pair = 0; pair < kPairs; ++pair) {
    all += chances_[pair];
    variance += chances_[pair] * (1.0 - chances_[pair]);
  }
  for (int seed = 0; seed < seeds; ++seed) {
    const HeadEdges& graph = Draw(seed);
    for (int i = 0; i < kTokens; ++i) {
      for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e) {
        edges[i * kTokens + graph.keys[e]] += 1.0;
        counts[i * kTokens + graph.keys[e]] += graph.multiplicity.empty() ? 1.0 : graph.multiplicity[e];
      }
    }
    squares += std::pow(static_cast<double>(graph.keys.size()) - all, 2) / seeds;
  }
  EXPECT_NEAR(squares / variance, 1.0, kStandardErrors * std::sqrt(2.0 / seeds)) << "variance of the number of edges";
  std::vector<int> order(kPairs);
  for (int pair = 0; pair < kPairs; ++pair) order[pair] = pair;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return rates_[a] < rates_[b]; });
  Bin bins[kBins];
  double square = 0.0;
  int tested = 0, bin = 0;
  double mass = 0.0;
  for (const int pair : order) {  // bins of equal variance
    const double p = chances_[pair], mean = p * seeds, of_one = p * (1.0 - p) * seeds;
    bin = std::min(kBins - 1, static_cast<int>(mass / variance * kBins));
    mass += p * (1.0 - p);
    bins[bin].edges += edges[pair];
    bins[bin].mean += mean;
    bins[bin].variance += of_one;
    bins[bin].counts += counts[pair];
    bins[bin].count_mean += rates_[pair] * seeds;
    if (p == 1.0) {
      EXPECT_EQ(edges[pair], seeds);
    } else if (mean > 4.0) {
      square += std::pow(edges[pair] - mean, 2) / of_one;
      ++tested;
    }
  }
  EXPECT_NEAR(square / tested, 1.0, kStandardErrors * std::sqrt(2.0 / tested)) << "over " << tested << " pairs";
  for (const Bin& b : bins) {
    const double error = std::sqrt(b.variance);
    EXPECT_LE(std::abs(b.edges - b.mean), kStandardErrors * error) << b.edges << " " << b.mean;
    EXPECT_GT(0.01 * b.mean, kStandardErrors * error * 0.8) << "the test sees a hundredth";
    if (GetParam().law != Law::kPoissonMulti) continue;
    EXPECT_LE(std::abs(b.counts - b.count_mean), kStandardErrors * std::sqrt(b.count_mean));
  }
}

TEST_P(EventsLawTest, PairsAreIndependent) {
  const int seeds = Seeds();
  std::vector<double> row_squares(kTokens, 0.0), key_squares(kTokens, 0.0);  // of degrees, less their means
  double beside[3] = {}, beside_mean[3] = {}, beside_variance[3] = {};       // edges of both of two pairs
  std::vector<double> row_mean(kTokens, 0.0), key_mean(kTokens, 0.0), row_variance(kTokens, 0.0),
      key_variance(kTokens, 0.0);
  const auto at = [](int i, int j) { return i * kTokens + j; };
  // In one row, of one key, and there and back.
  const auto second = [&](int kind, int i) {
    return kind == 0 ? at(i, i + 1) : kind == 1 ? at(i + 1, i) : at(i + 1, i);
  };
  const auto first = [&](int kind, int i) { return kind == 2 ? at(i, i + 1) : at(i, i); };
  for (int i = 0; i < kTokens; ++i) {
    for (int j = 0; j < kTokens; ++j) {
      const double p = chances_[at(i, j)];
      row_mean[i] += p;
      key_mean[j] += p;
      row_variance[i] += p * (1.0 - p);
      key_variance[j] += p * (1.0 - p);
    }
    for (int kind = 0; kind < 3 && i + 1 < kTokens; ++kind) {
      const double p = chances_[first(kind, i)] * chances_[second(kind, i)];
      beside_mean[kind] += p * seeds;
      beside_variance[kind] += p * (1.0 - p) * seeds;
    }
  }
  for (int seed = 0; seed < seeds; ++seed) {
    const HeadEdges& graph = Draw(seed);
    std::vector<bool> edge(kTokens * kTokens, false);
    std::vector<double> degree(kTokens, 0.0);
    for (int i = 0; i < kTokens; ++i) {
      const int64_t begin = graph.row_offsets[i], end = graph.row_offsets[i + 1];
      for (int64_t e = begin; e < end; ++e) {
        edge[at(i, graph.keys[e])] = true;
        degree[graph.keys[e]] += 1.0;
      }
      row_squares[i] += std::pow(static_cast<double>(end - begin) - row_mean[i], 2) / seeds;
    }
    for (int j = 0; j < kTokens; ++j) key_squares[j] += std::pow(degree[j] - key_mean[j], 2) / seeds;
    for (int i = 0; i + 1 < kTokens; ++i) {
      for (int kind = 0; kind < 3; ++kind) beside[kind] += edge[first(kind, i)] && edge[second(kind, i)] ? 1.0 : 0.0;
    }
  }
  double rows = 0.0, keys = 0.0;
  for (int i = 0; i < kTokens; ++i) {
    rows += row_squares[i] / row_variance[i] / kTokens;
    keys += key_squares[i] / key_variance[i] / kTokens;
  }
  // Degrees of few edges have heavier tails than normal numbers: a little more room.
  const double room = 1.5 * kStandardErrors * std::sqrt(2.0 / seeds / kTokens);
  EXPECT_NEAR(rows, 1.0, room);
  EXPECT_NEAR(keys, 1.0, room);
  for (int kind = 0; kind < 3; ++kind) {
    EXPECT_LE(std::abs(beside[kind] - beside_mean[kind]), kStandardErrors * std::sqrt(beside_variance[kind]) + 1.0);
  }
}

TEST_P(EventsLawTest, AgesAreThoseOfTheLaw) {
  constexpr int kAges = 20;
  const int seeds = Seeds() / 8;
  std::vector<double> found(kAges, 0.0), expected(kAges, 0.0);
  const Law law = GetParam().law;
  for (const double p : rates_) {
    for (int a = 0; a < kAges; ++a) {
      const double share =
          law == Law::kBernoulli ? p / kAges : std::exp(-p * a / kAges) - std::exp(-p * (a + 1) / kAges);
      expected[a] += share * seeds;
    }
  }
  for (int seed = 0; seed < seeds; ++seed) {
    drawn_.key.seed = static_cast<uint64_t>(seed) * 77 + 5;
    AttentionProblem problem;
    problem.tokens = kTokens;
    problem.pattern = drawn_;
    for (const reference::Edge& edge : reference::DrawByEvents(inputs_, problem, 0)) {
      found[static_cast<int>(edge.age * kAges)] += 1.0;
    }
  }
  double square = 0.0;
  for (int a = 0; a < kAges; ++a) square += std::pow(found[a] - expected[a], 2) / expected[a];
  EXPECT_LE(square, kAges + kStandardErrors * std::sqrt(2.0 * kAges));
}

TEST_P(EventsLawTest, ALargerCapOnlyAddsEdges) {
  for (int seed = 0; seed < 20; ++seed) {
    std::set<std::pair<int, int32_t>> kept;
    const uint64_t all = Draw(seed).keys.size();
    for (const double share : {0.01, 0.1, 0.5, 0.99, 1.0}) {
      const auto most = static_cast<uint64_t>(share * static_cast<double>(all));
      const HeadEdges& graph = Draw(seed, {EdgeCap{most}});
      ASSERT_EQ(graph.keys.size(), most);
      std::set<std::pair<int, int32_t>> more;
      for (int i = 0; i < kTokens; ++i) {
        for (int64_t e = graph.row_offsets[i]; e < graph.row_offsets[i + 1]; ++e) more.insert({i, graph.keys[e]});
      }
      EXPECT_TRUE(std::includes(more.begin(), more.end(), kept.begin(), kept.end()));
      kept = more;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Laws, EventsLawTest,
    ::testing::Values(LawCase{Law::kBernoulli, 0.08, 0.3, 0.0f}, LawCase{Law::kBernoulli, 0.08, 1.0, 0.01f},
                      LawCase{Law::kBernoulli, 0.2, 1.0, 0.0f}, LawCase{Law::kPoissonSet, 0.08, 0.3, 0.01f},
                      LawCase{Law::kPoissonSet, 0.2, 1.0, 0.0f}, LawCase{Law::kPoissonMulti, 0.08, 0.3, 0.0f},
                      LawCase{Law::kPoissonMulti, 0.2, 1.0, 0.02f}),
    [](const auto& info) { return "case" + std::to_string(info.index); });

}  // namespace
}  // namespace edgewise
