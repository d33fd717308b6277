#include "kernels/host/factorization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/reference/reference.h"

namespace edgewise {
namespace {

std::vector<float> Clusters(int k, int d, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> clusters(k * d);
  for (float& value : clusters) value = scale * normal(random);
  return clusters;
}

// Largest difference between <query^T q, key^T k> and q S k over random memberships.
double WorstError(const BlockFactor& factor, const std::vector<double>& s) {
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> uniform;
  const int k = factor.num_clusters;
  double worst = 0.0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> q(k), m(k);
    for (double& value : q) value = uniform(random);
    for (double& value : m) value = uniform(random);
    double exact = 0.0, factored = 0.0;
    for (int a = 0; a < k; ++a) {
      for (int b = 0; b < k; ++b) exact += q[a] * s[a * k + b] * m[b];
    }
    for (int r = 0; r < factor.rank; ++r) {
      double x = 0.0, y = 0.0;
      for (int c = 0; c < k; ++c) {
        x += q[c] * factor.query[c * factor.rank + r];
        y += m[c] * factor.key[c * factor.rank + r];
      }
      factored += x * y;
    }
    worst = std::max(worst, std::abs(exact - factored));
  }
  return worst;
}

TEST(FactorizationTest, ASoftmaxOfAGramMatrixIsFactoredWithinItsCertificate) {
  for (const auto& [k, d, scale] :
       {std::tuple{128, 32, 0.022f}, {128, 32, 0.2f}, {64, 64, 0.3f}, {16, 8, 1.0f}, {1, 4, 1.0f}}) {
    const std::vector<double> s = reference::BlockMatrix(Clusters(k, d, scale, 1), k, d);
    const BlockFactor factor = FactorBlockMatrix(s, k);
    EXPECT_TRUE(factor.semidefinite);
    EXPECT_LE(factor.error, 1.0 / (1 << 18));
    EXPECT_LE(WorstError(factor, s), factor.error + 1e-6);
  }
}

TEST(FactorizationTest, TheFactorOfASoftmaxIsLowerTriangular) {
  const BlockFactor factor = FactorBlockMatrix(reference::BlockMatrix(Clusters(64, 32, 0.02f, 1), 64, 32), 64);
  ASSERT_LT(factor.rank, 64);
  for (int c = 0; c < 64; ++c) {
    for (int r = 0; r < factor.rank; ++r) EXPECT_EQ(factor.query[c * factor.rank + r] == 0.0f, r > c);
  }
}

TEST(FactorizationTest, AFreshlyInitialisedModelNeedsALowRank) {
  const std::vector<double> s = reference::BlockMatrix(Clusters(128, 32, 0.0221f, 1), 128, 32);
  EXPECT_LE(FactorBlockMatrix(s, 128).rank, 48);
}

TEST(FactorizationTest, AnyOtherMatrixFallsBackToItself) {
  std::vector<double> s(256, 0.0);
  for (int u = 0; u < 16; ++u) s[u * 16 + (u + 1) % 16] = 1.0 / 16;  // cyclic: not symmetric
  const BlockFactor factor = FactorBlockMatrix(s, 16);
  EXPECT_FALSE(factor.semidefinite);
  EXPECT_LE(WorstError(factor, s), 1e-7);
  std::vector<double> indefinite(4, 0.0);
  indefinite[1] = indefinite[2] = 0.5;  // symmetric, eigenvalues +-1/2
  EXPECT_FALSE(FactorBlockMatrix(indefinite, 2).semidefinite);
}

}  // namespace
}  // namespace edgewise
