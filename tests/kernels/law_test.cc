// The three laws, statistically: counts, expectations and the mean output of many samples agree with theory within four
// standard errors, and would not if the law, the exploration or the random numbers of a head were wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <random>

#include "kernels/backend.h"

namespace edgewise {
namespace {

constexpr int kHeads = 2;
constexpr int kHeadDim = 16;
constexpr int kMembershipRank = 16;
constexpr double kAllowedErrors = 4.0;

// Random queries, keys, values and memberships of one sequence of n tokens, rates spread over (0, most).
struct Problem {
  Problem(int n, float most, uint64_t seed) : n(n) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
    for (auto* values : {&q, &k, &v}) {
      values->resize(n * kHeads * kHeadDim);
      for (float& value : *values) value = normal(random);
    }
    for (auto* values : {&x, &y}) {
      values->resize(kHeads * n * kMembershipRank);
      for (float& value : *values) value = uniform(random) * std::sqrt(most / kMembershipRank);
    }
    for (int r = 0; r < kHeads * n; ++r) {
      float xx = 0.0f, yy = 0.0f;
      for (int t = 0; t < kMembershipRank; ++t) {
        xx += x[r * kMembershipRank + t] * x[r * kMembershipRank + t];
        yy += y[r * kMembershipRank + t] * y[r * kMembershipRank + t];
      }
      query_bound.push_back(std::sqrt(xx) * 1.0001f);
      key_bound.push_back(std::sqrt(yy) * 1.0001f);
    }
  }

  AttentionInputs Inputs() const {
    AttentionInputs inputs;
    inputs.q = ConstMatrix(q.data(), n, kHeads * kHeadDim);
    inputs.k = ConstMatrix(k.data(), n, kHeads * kHeadDim);
    inputs.v = ConstMatrix(v.data(), n, kHeads * kHeadDim);
    inputs.memberships = {x.data(), y.data(), query_bound.data(), key_bound.data(), n, kMembershipRank};
    inputs.num_heads = kHeads;
    inputs.head_dim = kHeadDim;
    inputs.scale = 0.25f;
    return inputs;
  }

  // Probability of an edge, written from the definition of the law.
  double Probability(int head, int i, int j, Law law, double exploration) const {
    double rate = 0.0;
    for (int t = 0; t < kMembershipRank; ++t) {
      rate += static_cast<double>(x[(head * n + i) * kMembershipRank + t]) * y[(head * n + j) * kMembershipRank + t];
    }
    rate = std::min(1.0, rate + exploration);
    return law == Law::kBernoulli ? rate : 1.0 - std::exp(-rate);
  }

  int n;
  std::vector<float> q, k, v, x, y, query_bound, key_bound;
};

struct Sample {
  AttentionReport report;
  std::vector<float> out;  // [n, heads * head_dim]
};

Sample Draw(Backend& backend, const Problem& problem, DrawnRows drawn, bool graph) {
  Sample sample;
  sample.out.resize(problem.n * kHeads * kHeadDim);
  sample.report.wanted.expected = true;
  sample.report.wanted.graph = graph;
  AttentionProblem attention;
  attention.tokens = problem.n;
  attention.pattern = drawn;
  attention.report = &sample.report;
  const absl::Status status =
      backend.Attend(problem.Inputs(), {&attention, 1}, {}, Matrix(sample.out.data(), problem.n, kHeads * kHeadDim));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(backend.Synchronize().ok());
  return sample;
}

struct Case {
  Law law;
  float exploration;
  float most;  // largest rate
};

void PrintTo(const Case& c, std::ostream* out) {
  constexpr const char* kLaws[] = {"bernoulli", "poisson_set", "poisson_multi"};
  *out << kLaws[static_cast<int>(c.law)] << ", exploration " << c.exploration << ", rates to " << c.most;
}

class LawTest : public ::testing::TestWithParam<Case> {
 protected:
  LawTest() : backend_(*CreateBackend({})) {
    drawn_.law = GetParam().law;
    drawn_.exploration = GetParam().exploration;
    drawn_.key.seed = 99;
  }
  std::unique_ptr<Backend> backend_;
  DrawnRows drawn_;
};

TEST_P(LawTest, EdgeCountsHaveTheMeanOfTheLawAndOfNoOther) {
  const Problem problem(100, GetParam().most, 1);
  const int samples = 300;
  for (int head = 0; head < kHeads; ++head) {
    double mean = 0.0, variance = 0.0, other_law = 0.0, other_exploration = 0.0;
    const Law other = drawn_.law == Law::kBernoulli ? Law::kPoissonSet : Law::kBernoulli;
    for (int i = 0; i < problem.n; ++i) {
      for (int j = 0; j < problem.n; ++j) {
        const double p = problem.Probability(head, i, j, drawn_.law, drawn_.exploration);
        mean += p;
        variance += p * (1.0 - p);
        other_law += problem.Probability(head, i, j, other, drawn_.exploration);
        other_exploration += problem.Probability(head, i, j, drawn_.law, drawn_.exploration + 0.005);
      }
    }
    double edges = 0.0, squares = 0.0;
    for (int s = 0; s < samples; ++s) {
      drawn_.key.sample = s;
      const Sample sample = Draw(*backend_, problem, drawn_, false);
      const HeadReport& report = sample.report.heads[head];
      edges += static_cast<double>(report.edges);
      squares += std::pow(static_cast<double>(report.edges) - mean, 2);
      ASSERT_NEAR(report.expected, mean, 1e-3 * mean) << "the reported expectation";
    }
    const double error = std::sqrt(variance / samples);
    EXPECT_LE(std::abs(edges / samples - mean), kAllowedErrors * error);
    EXPECT_GT(std::abs(edges / samples - other_law), kAllowedErrors * error) << "the test tells the laws apart";
    EXPECT_GT(std::abs(edges / samples - other_exploration), kAllowedErrors * error) << "and the exploration";
    // The variance of a sum of independent draws; its estimate has a relative error of sqrt(2 / samples).
    EXPECT_NEAR(squares / samples / variance, 1.0, kAllowedErrors * std::sqrt(2.0 / samples));
  }
}

TEST_P(LawTest, HeadsLayersSidesAndSamplesDrawIndependently) {
  Problem problem(80, GetParam().most, 2);
  // Both heads get the same memberships, so equal random numbers would give equal edges.
  for (auto* values : {&problem.x, &problem.y}) {
    std::copy_n(values->begin(), values->size() / 2, values->begin() + static_cast<int64_t>(values->size() / 2));
  }
  for (auto* values : {&problem.query_bound, &problem.key_bound}) {
    std::copy_n(values->begin(), values->size() / 2, values->begin() + static_cast<int64_t>(values->size() / 2));
  }
  std::vector<std::vector<bool>> hits;  // of independent draws
  for (const auto& [layer, side, sample] : {std::tuple{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}}) {
    drawn_.key.layer = layer;
    drawn_.key.side = side;
    drawn_.key.sample = sample;
    const Sample drawn = Draw(*backend_, problem, drawn_, true);
    for (const HeadReport& head : drawn.report.heads) {
      auto& set = hits.emplace_back(problem.n * problem.n, false);
      for (int i = 0; i < problem.n; ++i) {
        for (int64_t e = head.graph.row_offsets[i]; e < head.graph.row_offsets[i + 1]; ++e) {
          set[i * problem.n + head.graph.keys[e]] = true;
        }
      }
    }
  }
  double mean = 0.0, variance = 0.0;
  for (int i = 0; i < problem.n; ++i) {
    for (int j = 0; j < problem.n; ++j) {
      const double p = problem.Probability(0, i, j, drawn_.law, drawn_.exploration);
      mean += p * p;
      variance += p * p * (1.0 - p * p);
    }
  }
  for (size_t a = 0; a < hits.size(); ++a) {
    for (size_t b = a + 1; b < hits.size(); ++b) {
      double both = 0.0;
      for (size_t pair = 0; pair < hits[a].size(); ++pair) both += hits[a][pair] && hits[b][pair];
      EXPECT_LE(std::abs(both - mean), kAllowedErrors * std::sqrt(variance)) << "draws " << a << " and " << b;
    }
  }
}

// With four keys the expectation of the output is a sum over all 2^4 edge sets (over multiplicities for the
// multigraph).
TEST_P(LawTest, TheMeanOutputOfManySamplesIsTheExpectationOverAllGraphs) {
  const int n = 4, samples = 4000, most = drawn_.law == Law::kPoissonMulti ? 6 : 2;  // multiplicities 0..most-1
  const Problem problem(n, GetParam().most, 3);
  std::vector<double> mean(n * kHeads * kHeadDim, 0.0), squares(mean.size(), 0.0), expected(mean.size(), 0.0);
  for (int s = 0; s < samples; ++s) {
    drawn_.key.sample = s;
    const Sample sample = Draw(*backend_, problem, drawn_, false);
    for (size_t c = 0; c < mean.size(); ++c) {
      mean[c] += sample.out[c] / samples;
      squares[c] += static_cast<double>(sample.out[c]) * sample.out[c] / samples;
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < n; ++i) {
      std::vector<double> score(n, 0.0);
      for (int j = 0; j < n; ++j) {
        for (int t = 0; t < kHeadDim; ++t) {
          score[j] +=
              0.25 * problem.q[(i * kHeads + head) * kHeadDim + t] * problem.k[(j * kHeads + head) * kHeadDim + t];
        }
      }
      for (int graph = 0; graph < most * most * most * most; ++graph) {
        double probability = 1.0, total = 0.0;
        std::vector<double> weight(n, 0.0);
        for (int j = 0, rest = graph; j < n; ++j, rest /= most) {
          const int count = rest % most;
          const double p = problem.Probability(head, i, j, drawn_.law, drawn_.exploration);
          const double rate = -std::log1p(-p);  // of the Poisson law
          if (drawn_.law == Law::kPoissonMulti) {
            probability *= std::exp(-rate) * std::pow(rate, count) / std::tgamma(count + 1.0);
          } else {
            probability *= count == 1 ? p : 1.0 - p;
          }
          weight[j] = count * std::exp(score[j]);
          total += weight[j];
        }
        for (int j = 0; total > 0.0 && j < n; ++j) {
          for (int t = 0; t < kHeadDim; ++t) {
            const size_t c = (i * kHeads + head) * kHeadDim + t;
            expected[c] += probability * weight[j] / total * problem.v[(j * kHeads + head) * kHeadDim + t];
          }
        }
      }
    }
  }
  double worst = 0.0;
  for (size_t c = 0; c < mean.size(); ++c) {
    const double error = std::sqrt(std::max(squares[c] - mean[c] * mean[c], 1e-12) / samples);
    worst = std::max(worst, std::abs(mean[c] - expected[c]) / error);
  }
  EXPECT_LE(worst, kAllowedErrors) << "over " << mean.size() << " outputs";
}

INSTANTIATE_TEST_SUITE_P(Laws, LawTest,
                         ::testing::Values(Case{Law::kBernoulli, 0.0f, 0.9f}, Case{Law::kBernoulli, 0.01f, 0.3f},
                                           Case{Law::kPoissonSet, 0.0f, 0.9f}, Case{Law::kPoissonSet, 0.01f, 0.3f},
                                           Case{Law::kPoissonMulti, 0.0f, 0.9f}, Case{Law::kPoissonMulti, 0.02f, 0.5f}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

}  // namespace
}  // namespace edgewise
