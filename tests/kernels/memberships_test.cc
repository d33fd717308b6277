// Memberships: inner products are the edge rates of the definition, and the bounds hold.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/backend.h"
#include "kernels/reference.h"

namespace edgewise {
namespace {

std::vector<float> Random(size_t size, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = scale * normal(random);
  return values;
}

void CheckMemberships(int heads, int d, int k, int64_t rows, const std::vector<float>& block_matrix) {
  const auto w0 = Random(d * d, 0.4f, 1), b0 = Random(d, 0.2f, 2), w1 = Random(d * d, 0.4f, 3), b1 = Random(d, 0.2f, 4);
  const auto clusters = Random(heads * k * d, 0.5f, 5);
  MembershipParameters parameters{heads, d, k, w0, b0, w1, b1, clusters, block_matrix};
  BackendOptions options;
  options.num_threads = 2;
  const auto backend = *CreateBackend(options);
  const auto weights = backend->PrepareMemberships(parameters);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const int32_t rank = (*weights)->rank();
  EXPECT_EQ(rank % kDotLanes, 0);
  EXPECT_LE(rank, (k + kDotLanes - 1) / kDotLanes * kDotLanes);

  const auto q = Random(rows * heads * d, 1.0f, 6), key = Random(rows * heads * d, 1.0f, 7);
  std::vector<float> x(heads * rows * rank), y(x.size()), a(heads * rows), c(heads * rows);
  const Memberships out{x.data(), y.data(), a.data(), c.data(), rows, rank};
  const ConstMatrix q_view(q.data(), rows, heads * d), k_view(key.data(), rows, heads * d);
  ASSERT_TRUE(backend->ComputeMemberships(**weights, q_view, k_view, out).ok());
  for (int h = 0; h < heads; ++h) {
    const auto rates = reference::EdgeRates(parameters, h, q_view.Columns(h * d, d), k_view.Columns(h * d, d));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j) {
        const float dot = MembershipDot(x.data() + (h * rows + i) * rank, y.data() + (h * rows + j) * rank, rank);
        ASSERT_NEAR(dot, rates[i * rows + j], 3e-6);
        ASSERT_LE(dot, a[h * rows + i] * c[h * rows + j]) << "the bound holds";
      }
    }
  }
}

TEST(MembershipsTest, InnerProductsAreTheEdgeRates) {
  CheckMemberships(2, 32, 128, 70, {});
  CheckMemberships(1, 16, 10, 5, {});  // clusters not a multiple of the lanes
  CheckMemberships(3, 8, 16, 130, {});
}

TEST(MembershipsTest, AnyBlockMatrixHasTheFallback) {
  std::vector<float> s(2 * 20 * 20, 0.0f);
  for (int h = 0; h < 2; ++h) {
    for (int u = 0; u < 20; ++u) s[h * 400 + u * 20 + (u * 7 + h) % 20] = 0.05f;
  }
  CheckMemberships(2, 16, 20, 70, s);
}

}  // namespace
}  // namespace edgewise
