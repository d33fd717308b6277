// Memberships on every device: inner products are the edge rates of the definition, the bounds hold, and a row depends
// on nothing else.
#include "kernels/cpu/ops/memberships.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd/isa.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/device_matrix.h"

namespace edgewise {
namespace {

using testing::DeviceMatrix;
using testing::Fetch;
using testing::Random;
using testing::RowsOf;

struct MembershipShape {
  int heads, d, k;
  int64_t rows;
};

class MembershipsTest : public testing::DeviceTest {
 protected:
  struct Result {
    int32_t rank;
    std::vector<float> x, y, query_bound, key_bound;
  };

  void Check(const MembershipShape& shape, const std::vector<float>& block_matrix = {}) {
    const int heads = shape.heads, d = shape.d, k = shape.k;
    const int64_t rows = shape.rows, columns = int64_t{heads} * d;
    const auto w0 = Random(d * d, 1, 0.4f), b0 = Random(d, 2, 0.2f), w1 = Random(d * d, 3, 0.4f),
               b1 = Random(d, 4, 0.2f);
    const auto clusters = Random(heads * k * d, 5, 0.5f), q = Random(rows * columns, 6),
               key = Random(rows * columns, 7);
    const MembershipParameters parameters = {heads, d, k, w0, b0, w1, b1, clusters, block_matrix};
    const auto weights = backend_->PrepareMemberships(parameters);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const int32_t rank = (*weights)->rank();
    EXPECT_EQ(rank % kDotLanes, 0);
    EXPECT_LE(rank, (k + kDotLanes - 1) / kDotLanes * kDotLanes);

    // Of some of the rows, from views with gaps.
    const auto compute = [&](int64_t first, int64_t count, int64_t gap, int64_t shift) -> Result {
      const DeviceMatrix of_q(*backend_, RowsOf(q, columns, first, count), count, columns, columns + gap, shift);
      const DeviceMatrix of_k(*backend_, RowsOf(key, columns, first, count), count, columns);
      const int64_t size = heads * count;
      const Buffer x = *backend_->Allocate(size * rank), y = *backend_->Allocate(size * rank);
      const Buffer a = *backend_->Allocate(size), c = *backend_->Allocate(size);
      const Memberships out = {x.data(), y.data(), a.data(), c.data(), count, rank};
      EXPECT_TRUE(backend_->ComputeMemberships(**weights, of_q.view(), of_k.view(), out).ok());
      return {rank, Fetch(*backend_, x), Fetch(*backend_, y), Fetch(*backend_, a), Fetch(*backend_, c)};
    };
    const Result r = compute(0, rows, 0, 0);
    const ConstMatrix q_view(q.data(), rows, columns), k_view(key.data(), rows, columns);
    for (int h = 0; h < heads; ++h) {
      const auto rates = reference::EdgeRates(parameters, h, q_view.Columns(h * d, d), k_view.Columns(h * d, d));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < rows; ++j) {
          const float dot = MembershipDot(&r.x[(h * rows + i) * rank], &r.y[(h * rows + j) * rank], rank);
          const float bound = r.query_bound[h * rows + i] * r.key_bound[h * rows + j];
          ASSERT_NEAR(dot, rates[i * rows + j], GetParam().rates);
          ASSERT_LE(dot, bound) << "the bound holds";
          ASSERT_LE(bound, block_matrix.empty() ? 1.5f : HUGE_VALF) << "and says something";
        }
      }
    }
    for (const int64_t first : {int64_t{0}, rows / 2, rows - 1}) {
      const int64_t part = std::min<int64_t>(rows - first, 3);
      const Result some = compute(first, part, 3, 1);
      for (int h = 0; h < heads; ++h) {
        const auto same = [&](const std::vector<float>& all, const std::vector<float>& few, int64_t width) {
          ASSERT_EQ(RowsOf(few, width, h * part, part), RowsOf(all, width, h * rows + first, part));
        };
        same(r.x, some.x, rank);
        same(r.y, some.y, rank);
        same(r.query_bound, some.query_bound, 1);
        same(r.key_bound, some.key_bound, 1);
      }
    }
  }
};
EDGEWISE_TEST_ON(Devices, MembershipsTest);

TEST_P(MembershipsTest, InnerProductsAreTheEdgeRates) {
  Check({2, 32, 128, Sized(70, 33)});  // several tiles of clusters; a second block of rows
  Check({1, 3, 10, 5});                // nothing is a multiple of anything
  Check({3, 8, 16, 1});                // one row
  Check({1, 72, 70, 4});               // more than one tile of everything
}

TEST_P(MembershipsTest, AnyBlockMatrixHasTheFallback) {
  std::vector<float> s(2 * 20 * 20, 0.0f);
  for (int h = 0; h < 2; ++h) {
    for (int u = 0; u < 20; ++u) s[h * 400 + u * 20 + (u * 7 + h) % 20] = 0.05f;
  }
  Check({2, 16, 20, Sized(70, 37)}, s);
}

// Weights that fit into no block's shared memory on a GPU.
TEST_P(MembershipsTest, ManyClustersAreTheDefinitionToo) {
  std::vector<float> s(700 * 700, 0.0f);
  for (int u = 0; u < 700; ++u) s[u * 700 + (u * 3 + 1) % 700] = 1.0f / 700;
  Check({1, 24, 700, 18}, s);
}

// Threads work side by side in one buffer: what one writes behind its part would be another's.
TEST(MembershipScratchTest, NoTileWritesBehindItsPart) {
  const int d = 16, k = 16, rows = kMembershipRows;  // whole vectors, and a whole tile
  const auto w = Random(d * d, 1), b = Random(d, 2), clusters = Random(k * d, 3), q = Random(rows * d, 4);
  for (const char* name : {"generic", "avx2", "avx512"}) {
    const absl::StatusOr<Isa> isa = SelectIsa(name);
    if (!isa.ok()) continue;
    const CpuMembershipWeights weights(KernelsFor(*isa), {1, d, k, w, b, w, b, clusters, {}});
    std::vector<float> x(rows * weights.rank()), y = x, query_bound(rows), key_bound(rows);
    const Memberships out = {x.data(), y.data(), query_bound.data(), key_bound.data(), rows, weights.rank()};
    ThreadPool one(1);
    constexpr float kUntouched = 12345.0f;
    std::vector<float> scratch(rows * 4096, kUntouched);  // far more than Run needs, which makes it smaller
    const ConstMatrix in(q.data(), rows, d);
    weights.Run(one, scratch, in, in, out);
    ASSERT_LE(scratch.size() + 64, size_t{rows} * 4096);
    for (size_t i = 0; i < 64; ++i) {
      ASSERT_EQ(scratch.data()[scratch.size() + i], kUntouched) << name;  // still of the vector's own memory
    }
  }
}

}  // namespace
}  // namespace edgewise
