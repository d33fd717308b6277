// Memberships: inner products are the edge rates of the definition, the bounds hold, and a row depends on nothing else.
#include "kernels/cuda/ops/memberships.h"

#include <cmath>

#include "kernels/reference.h"
#include "tests/cuda/device_data.h"

namespace edgewise::cuda {
namespace {

struct Shape {
  int heads, d, k;
  int64_t rows;
};

class MembershipsTest : public OrderTest {
 protected:
  struct Result {
    int32_t rank;
    std::vector<float> x, y, query_bound, key_bound;
  };

  void SetShape(const Shape& shape, const std::vector<float>& block_matrix) {
    shape_ = shape;
    const size_t d = shape.d;
    block_matrix_ = block_matrix;
    w0_ = Random(d * d, 1, 0.4f), b0_ = Random(d, 2, 0.2f), w1_ = Random(d * d, 3, 0.4f), b1_ = Random(d, 4, 0.2f);
    clusters_ = Random(shape.heads * shape.k * d, 5, 0.5f);
    parameters_ = {shape.heads, shape.d, shape.k, w0_, b0_, w1_, b1_, clusters_, block_matrix_};
    q_ = Random(shape.rows * shape.heads * d, 6), k_ = Random(shape.rows * shape.heads * d, 7);
  }

  // Of rows first..first + rows - 1.
  Result Compute(int64_t first, int64_t rows, int64_t gap, int64_t shift) {
    const auto weights = *PrepareMemberships(device_, parameters_);
    const int64_t columns = int64_t{shape_.heads} * shape_.d;
    const auto part = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + first * columns, all.begin() + (first + rows) * columns);
    };
    const DeviceMatrix q(device_, part(q_), rows, columns, columns + gap, shift), k(device_, part(k_), rows, columns);
    const int32_t rank = weights->rank();
    const int64_t size = shape_.heads * rows;
    const DeviceCopy<float> x(device_, std::vector<float>(size * rank)), y(device_, std::vector<float>(size * rank));
    const DeviceCopy<float> a(device_, std::vector<float>(size)), c(device_, std::vector<float>(size));
    EXPECT_TRUE(
        ComputeMemberships(*device_, *weights, q.view(), k.view(), {x.data(), y.data(), a.data(), c.data(), rows, rank})
            .ok());
    return {rank, x.Host(), y.Host(), a.Host(), c.Host()};
  }

  void Check(const Shape& shape, const std::vector<float>& block_matrix = {}) {
    SetShape(shape, block_matrix);
    const int64_t rows = shape.rows, columns = int64_t{shape.heads} * shape.d;
    const Result r = Compute(0, rows, 0, 0);
    EXPECT_EQ(r.rank % kDotLanes, 0);
    const ConstMatrix q(q_.data(), rows, columns), k(k_.data(), rows, columns);
    for (int h = 0; h < shape.heads; ++h) {
      const auto rates =
          reference::EdgeRates(parameters_, h, q.Columns(h * shape.d, shape.d), k.Columns(h * shape.d, shape.d));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < rows; ++j) {
          const float dot =
              MembershipDot(r.x.data() + (h * rows + i) * r.rank, r.y.data() + (h * rows + j) * r.rank, r.rank);
          ASSERT_NEAR(dot, rates[i * rows + j], 5e-6);
          const float bound = r.query_bound[h * rows + i] * r.key_bound[h * rows + j];
          ASSERT_LE(dot, bound);
          ASSERT_LE(bound, block_matrix.empty() ? 1.5f : HUGE_VALF) << "a bound that says something";
        }
      }
    }
    // A few rows alone, from a view with gaps.
    for (const int64_t first : {int64_t{0}, rows / 2, rows - 1}) {
      const int64_t part = std::min<int64_t>(rows - first, 3);
      const Result some = Compute(first, part, 3, 1);
      for (int h = 0; h < shape.heads; ++h) {
        const auto same = [&](const std::vector<float>& all, const std::vector<float>& few, int64_t width) {
          for (int64_t i = 0; i < part * width; ++i) {
            ASSERT_EQ(few[h * part * width + i], all[(h * rows + first) * width + i]);
          }
        };
        same(r.x, some.x, r.rank);
        same(r.y, some.y, r.rank);
        same(r.query_bound, some.query_bound, 1);
        same(r.key_bound, some.key_bound, 1);
      }
    }
  }

  Shape shape_;
  std::vector<float> w0_, b0_, w1_, b1_, clusters_, block_matrix_, q_, k_;
  MembershipParameters parameters_;
};
INSTANTIATE_TEST_SUITE_P(Orders, MembershipsTest, AllOrders());

TEST_P(MembershipsTest, InnerProductsAreTheEdgeRates) {
  Check({2, 32, 128, 33});  // several tiles of clusters, a second block
  Check({1, 3, 10, 5});     // nothing is a multiple of anything
  Check({3, 8, 16, 1});
  Check({1, 72, 70, 4});  // more than one tile and panel of everything
}

TEST_P(MembershipsTest, AnyBlockMatrixHasTheFallback) {
  std::vector<float> s(2 * 20 * 20, 0.0f);
  for (int h = 0; h < 2; ++h) {
    for (int u = 0; u < 20; ++u) s[h * 400 + u * 20 + (u * 7 + h) % 20] = 0.05f;
  }
  Check({2, 16, 20, 37}, s);
}

// More shared memory than blocks of 32 tokens may have.
TEST(WideMembershipsTest, AgreeWithTheReference) {
  class Wide : public MembershipsTest {
   public:
    using MembershipsTest::Check;
    void TestBody() override {}
    void Open() { device_ = *Device::Open(0); }
  } wide;
  wide.Open();
  std::vector<float> s(700 * 700, 0.0f);
  for (int u = 0; u < 700; ++u) s[u * 700 + (u * 3 + 1) % 700] = 1.0f / 700;
  wide.Check({1, 24, 700, 18}, s);
}

}  // namespace
}  // namespace edgewise::cuda
