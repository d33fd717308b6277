// Memberships of split halves against float64, the float32 chains of the CPU, and themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/ops/memberships.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/membership_halves.h"
#include "kernels/cuda/ops/memberships.h"
#include "kernels/draw/draw.h"
#include "tests/kernels/random_floats.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::Random;

// S of one head [k, k]: a product of random factors, so of this rank; or, of rank 0, random and not symmetric.
std::vector<float> BlockMatrixOf(int k, int rank, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0 / k);
  std::vector<float> s(static_cast<size_t>(k) * k);
  if (rank == 0) {
    for (float& value : s) value = static_cast<float>(uniform(random));
    return s;
  }
  std::vector<double> factor(static_cast<size_t>(k) * rank);
  for (double& value : factor) value = uniform(random) * std::sqrt(static_cast<double>(k) / rank);
  for (int u = 0; u < k; ++u) {
    for (int v = 0; v <= u; ++v) {
      double sum = 0.0;
      for (int r = 0; r < rank; ++r) sum += factor[u * rank + r] * factor[v * rank + r];
      s[u * k + v] = s[v * k + u] = static_cast<float>(sum);
    }
  }
  return s;
}

// What a call gives.
struct Rows {
  bool operator==(const Rows& other) const {  // of bytes
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(x, other.x) && same(y, other.y) && same(query_bound, other.query_bound) &&
           same(key_bound, other.key_bound);
  }
  // x or y of one row of one head.
  std::span<const float> Row(bool query, int head, int64_t row) const {
    const std::vector<float>& values = query ? x : y;
    const auto rank = static_cast<int64_t>(values.size()) / static_cast<int64_t>(query_bound.size());
    return std::span(values).subspan(static_cast<size_t>((head * count + row) * rank), static_cast<size_t>(rank));
  }
  float Bound(bool query, int head, int64_t row) const { return (query ? query_bound : key_bound)[head * count + row]; }

  int64_t count = 0;
  std::vector<float> x, y, query_bound, key_bound;
};

// The network of one layer, on the emulated device and on the CPU.
class Network {
 public:
  // Scales: of the hidden weights and of the clusters.
  Network(int heads, int d, int k, int rank, float hidden_scale = 1.0f, float cluster_scale = 1.0f,
          float bias_scale = 0.2f)
      : weight0_(Random(static_cast<size_t>(d) * d, 1, hidden_scale / std::sqrt(static_cast<float>(d)))),
        bias0_(Random(d, 2, bias_scale)),
        weight1_(Random(static_cast<size_t>(d) * d, 3, 1.0f / std::sqrt(static_cast<float>(d)))),
        bias1_(Random(d, 4, bias_scale)),
        clusters_(Random(static_cast<size_t>(heads) * k * d, 5, 0.3f * cluster_scale)) {
    for (int h = 0; h < heads; ++h) {
      const std::vector<float> s = BlockMatrixOf(k, rank, 10 + h);
      block_matrix_.insert(block_matrix_.end(), s.begin(), s.end());
    }
    parameters_ = {heads, d, k, weight0_, bias0_, weight1_, bias1_, clusters_, block_matrix_};
    folded_ = FoldMemberships(parameters_);
    weights_ = *PrepareMemberships(device_, parameters_);
    cpu_ = std::make_unique<CpuMembershipWeights>(KernelsFor(*SelectIsa("auto")), parameters_);
  }

  bool IsSplit() const { return SplitIntoHalves(parameters_, folded_, device_->shared_memory()).has_value(); }
  int64_t columns() const { return int64_t{parameters_.num_heads} * parameters_.head_dim; }
  int rank() const { return folded_.rank; }
  int heads() const { return parameters_.num_heads; }
  const FoldedMemberships& folded() const { return folded_; }

  Rows OnDevice(const std::vector<float>& q, const std::vector<float>& k) const {
    const auto copy = [&](const std::vector<float>& host) {
      return *DeviceArray::Copy(*device_, std::span<const float>(host));
    };
    Rows rows = Room(q);
    const DeviceArray q_copy = copy(q), k_copy = copy(k), x = copy(rows.x), y = copy(rows.y),
                      a = copy(rows.query_bound), b = copy(rows.key_bound);
    const Memberships out = {x.as<float>(), y.as<float>(), a.as<float>(), b.as<float>(), rows.count, rank()};
    const absl::Status status = ComputeMemberships(*device_, *weights_, {q_copy.as<float>(), rows.count, columns()},
                                                   {k_copy.as<float>(), rows.count, columns()}, out);
    EXPECT_TRUE(status.ok()) << status;
    const auto fetch = [&](const DeviceArray& from, std::vector<float>& to) {
      EXPECT_EQ(cudaMemcpy(to.data(), from.data(), to.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    };
    fetch(x, rows.x), fetch(y, rows.y), fetch(a, rows.query_bound), fetch(b, rows.key_bound);
    return rows;
  }

  Rows OnCpu(const std::vector<float>& q, const std::vector<float>& k) const {
    Rows rows = Room(q);
    ThreadPool pool(1);
    std::vector<float> scratch;
    cpu_->Run(pool, scratch, {q.data(), rows.count, columns()}, {k.data(), rows.count, columns()},
              {rows.x.data(), rows.y.data(), rows.query_bound.data(), rows.key_bound.data(), rows.count, rank()});
    return rows;
  }

  // x or y of one row z of all heads, in float64.
  std::vector<double> Exact(const float* z, bool query, int head) const {
    const int d = parameters_.head_dim, k = parameters_.num_clusters;
    z += head * d;
    std::vector<double> hidden(d), members(k), values(rank(), 0.0);
    for (int o = 0; o < d; ++o) {
      double sum = bias0_[o];
      for (int i = 0; i < d; ++i) sum += static_cast<double>(weight0_[o * d + i]) * z[i];
      hidden[o] = std::max(sum, 0.0);
    }
    const FoldedHead& of = folded_.heads[head];
    for (int c = 0; c < k; ++c) {
      double sum = of.bias[c];
      for (int i = 0; i < d; ++i) sum += static_cast<double>(of.clusters[c * d + i]) * hidden[i];
      members[c] = 1.0 / (1.0 + std::exp(-sum));
    }
    const std::vector<float>& factor = query ? of.factor.query : of.factor.key;
    for (int r = 0; r < of.factor.rank; ++r) {
      for (int c = 0; c < k; ++c) values[r] += static_cast<double>(factor[c * of.factor.rank + r]) * members[c];
    }
    return values;
  }

  struct Errors {
    double mean = 0.0;   // root of the mean square, over that of the values
    double worst = 0.0;  // over the largest of its row
  };
  Errors Compare(const Rows& rows, const std::vector<float>& q, const std::vector<float>& k) const {
    double squares = 0.0, all = 0.0;
    Errors errors;
    for (const bool query : {true, false}) {
      for (int h = 0; h < heads(); ++h) {
        for (int64_t row = 0; row < rows.count; ++row) {
          const std::vector<double> want = Exact((query ? q : k).data() + row * columns(), query, h);
          const std::span<const float> got = rows.Row(query, h, row);
          double largest = 0.0, difference = 0.0;
          for (int r = 0; r < rank(); ++r) {
            const double error = static_cast<double>(got[r]) - want[r];
            squares += error * error;
            all += want[r] * want[r];
            largest = std::max(largest, std::abs(want[r]));
            difference = std::isfinite(error) ? std::max(difference, std::abs(error)) : HUGE_VAL;
          }
          errors.worst = std::max(errors.worst, difference / largest);
        }
      }
    }
    errors.mean = std::sqrt(squares / all);
    return errors;
  }

 private:
  Rows Room(const std::vector<float>& q) const {
    Rows rows;
    rows.count = static_cast<int64_t>(q.size()) / columns();
    rows.x.assign(static_cast<size_t>(heads() * rows.count * rank()), -1.0f);
    rows.y = rows.x;
    rows.query_bound.assign(static_cast<size_t>(heads() * rows.count), -1.0f);
    rows.key_bound = rows.query_bound;
    return rows;
  }

  std::vector<float> weight0_, bias0_, weight1_, bias1_, clusters_, block_matrix_;
  MembershipParameters parameters_;
  FoldedMemberships folded_;
  const std::shared_ptr<Device> device_ = *Device::Open(0);
  std::unique_ptr<MembershipWeights> weights_;
  std::unique_ptr<CpuMembershipWeights> cpu_;
};

void ExpectBounds(const Rows& rows, int heads, int rank) {
  for (int h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < rows.count; ++i) {
      for (int64_t j = 0; j < rows.count; ++j) {
        const float dot = MembershipDot(rows.Row(true, h, i).data(), rows.Row(false, h, j).data(), rank);
        ASSERT_LE(dot, rows.Bound(true, h, i) * rows.Bound(false, h, j));
      }
    }
  }
}

// Whether these weights are split, and whatever they are: the memberships and the bounds are those of the definition.
void CheckShape(int d, int k, int rank, int& split) {
  SCOPED_TRACE(::testing::Message() << d << " columns, " << k << " clusters, rank " << rank);
  const Network network(1, d, k, rank);
  split += network.IsSplit() ? 1 : 0;
  const std::vector<float> q = Random(19 * d, 6), key = Random(19 * d, 7);
  const Rows got = network.OnDevice(q, key), cpu = network.OnCpu(q, key);
  EXPECT_LE(network.Compare(got, q, key).worst, 3e-6);
  EXPECT_LE(network.Compare(cpu, q, key).worst, 3e-6);
  ExpectBounds(got, 1, network.rank());
  for (const bool query : {true, false}) {
    for (int64_t row = 0; row < got.count; ++row) {
      ASSERT_NEAR(got.Bound(query, 0, row), cpu.Bound(query, 0, row), 1e-5f * cpu.Bound(query, 0, row));
    }
  }
}

TEST(SplitMembershipsTest, AreTheDefinitionInEveryShape) {
  int split = 0, shapes = 0;
  for (const int d : {8, 24, 64, 96, 128, 256}) {
    for (const int k : {1, 5, 32, 64, 128, 200}) {
      for (const int rank : {0, 4, 8, 32, 64, 100, 128}) {  // 0: not semidefinite, so of rank k
        if (rank > k) continue;
        CheckShape(d, k, rank, split);
        ++shapes;
      }
    }
  }
  EXPECT_GT(split, shapes * 3 / 4);
  split = 0;
  CheckShape(160, 40, 40, split);   // a row too wide to stay in registers
  CheckShape(3, 10, 10, split);     // nothing is a multiple of anything
  CheckShape(32, 256, 256, split);  // two runs of 128 columns
  EXPECT_EQ(split, 3);
  CheckShape(8, 1024, 0, split);
  CheckShape(8, 600, 512, split);
  CheckShape(256, 8, 4, split);
  EXPECT_EQ(split, 3) << "their weights fit into no block's shared memory";
}

TEST(SplitMembershipsTest, ErrNoMoreThanFloat32) {
  for (const auto& [d, k, rank] : {std::tuple{64, 128, 128}, {64, 128, 32}, {32, 64, 64}, {128, 64, 64}, {64, 64, 0}}) {
    SCOPED_TRACE(::testing::Message() << d << " columns, " << k << " clusters, rank " << rank);
    const Network network(1, d, k, rank);
    ASSERT_TRUE(network.IsSplit());
    const std::vector<float> q = Random(200 * d, 6), key = Random(200 * d, 7);
    const Network::Errors split = network.Compare(network.OnDevice(q, key), q, key);
    const Network::Errors chains = network.Compare(network.OnCpu(q, key), q, key);
    EXPECT_LE(split.mean, chains.mean);
    EXPECT_LE(split.worst, 1.5 * chains.worst);
  }
}

// Several blocks, and a tile that is not full.
TEST(SplitMembershipsTest, ARowAmongStrangersHasTheBytesThatItHasAlone) {
  const int d = 24;
  for (const int rank : {20, 0}) {
    const Network network(2, d, 40, rank);
    ASSERT_TRUE(network.IsSplit());
    const int64_t columns = network.columns(), count = 16 * 40 + 5;
    const std::vector<float> q = Random(count * columns, 6), key = Random(count * columns, 7);
    const Rows all = network.OnDevice(q, key);
    for (int64_t offset = 0; offset < 33; ++offset) {
      const int64_t row = offset * 19, rows = offset + 1 + offset % 3;
      std::vector<float> other_q = Random(rows * columns, 100 + offset, 1e3f), other_key = Random(rows * columns, 200);
      std::copy_n(q.begin() + row * columns, columns, other_q.begin() + offset * columns);
      std::copy_n(key.begin() + row * columns, columns, other_key.begin() + offset * columns);
      const Rows few = network.OnDevice(other_q, other_key);
      for (const bool query : {true, false}) {
        for (int h = 0; h < 2; ++h) {
          const std::span<const float> want = all.Row(query, h, row), got = few.Row(query, h, offset);
          ASSERT_EQ(std::vector(got.begin(), got.end()), std::vector(want.begin(), want.end())) << offset;
          ASSERT_EQ(few.Bound(query, h, offset), all.Bound(query, h, row)) << offset;
        }
      }
    }
  }
}

// As many sides as the emulated device has multiprocessors, and more tiles than a block has warps.
TEST(SplitMembershipsTest, BlocksGoOverAllTilesOfTheirSide) {
  const Network network(66, 8, 5, 5);
  ASSERT_TRUE(network.IsSplit());
  const int64_t count = 17 * 16 + 5;
  const std::vector<float> q = Random(count * network.columns(), 6), key = Random(count * network.columns(), 7);
  EXPECT_LE(network.Compare(network.OnDevice(q, key), q, key).worst, 3e-6);
}

TEST(SplitMembershipsTest, RowsOfAnyMagnitudeAreAsAccurate) {
  const Network network(1, 64, 32, 32);
  ASSERT_TRUE(network.IsSplit());
  for (const float scale : {1e-30f, 1e-10f, 1e10f, 1e30f}) {
    const std::vector<float> q = Random(40 * 64, 6, scale), key = Random(40 * 64, 7, scale);
    EXPECT_LE(network.Compare(network.OnDevice(q, key), q, key).worst, 2e-6) << scale;
  }
  std::vector<float> q = Random(40 * 64, 6), key = Random(40 * 64, 7);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] *= std::pow(10.0f, static_cast<float>(i / 64 % 7) * 10.0f - 30.0f);  // rows
    key[i] *= std::pow(10.0f, static_cast<float>(i % 13) - 10.0f);            // elements of a row
  }
  EXPECT_LE(network.Compare(network.OnDevice(q, key), q, key).worst, 3e-6);
}

// Powers of two that a layer's weights take and its rows give change no bit of the sums.
TEST(SplitMembershipsTest, ScalesAreExact) {
  const std::vector<float> q = Random(40 * 64, 6), key = Random(40 * 64, 7);
  const Network plain(1, 64, 32, 32, 1.0f, 1.0f, 0.0f);
  const Rows want = plain.OnDevice(q, key);
  for (const float scale : {0x1p-90f, 0x1p-20f, 0x1p20f, 0x1p90f}) {
    std::vector<float> scaled_q = q, scaled_key = key;
    for (float& value : scaled_q) value /= scale;
    for (float& value : scaled_key) value /= scale;
    EXPECT_EQ(Network(1, 64, 32, 32, scale, 1.0f, 0.0f).OnDevice(scaled_q, scaled_key), want) << scale;
    EXPECT_EQ(Network(1, 64, 32, 32, scale, 1.0f / scale, 0.0f).OnDevice(q, key), want) << scale;
  }
}

TEST(SplitMembershipsTest, RowsThatAreNotFiniteHarmOnlyThemselves) {
  for (const int rank : {32, 0}) {
    const Network network(1, 64, 32, rank);
    ASSERT_TRUE(network.IsSplit());
    std::vector<float> q = Random(40 * 64, 6), key = Random(40 * 64, 7);
    const Rows want = network.OnDevice(q, key);
    const std::vector<std::pair<int64_t, float>> bad = {{3, NAN}, {9, HUGE_VALF}, {16, -HUGE_VALF}, {39, NAN}};
    for (const auto& [row, value] : bad) q[row * 64 + 5 * row % 64] = key[row * 64 + 63] = value;
    const Rows got = network.OnDevice(q, key), cpu = network.OnCpu(q, key);
    for (const bool query : {true, false}) {
      for (int64_t row = 0; row < 40; ++row) {
        const std::span<const float> values = got.Row(query, 0, row), before = want.Row(query, 0, row);
        if (std::none_of(bad.begin(), bad.end(), [&](const auto& one) { return one.first == row; })) {
          ASSERT_EQ(std::vector(values.begin(), values.end()), std::vector(before.begin(), before.end())) << row;
          ASSERT_EQ(got.Bound(query, 0, row), want.Bound(query, 0, row)) << row;
          continue;
        }
        for (const float value : values.first(32)) ASSERT_TRUE(std::isnan(value)) << row;
        // No pair of it has an edge, as on the CPU.
        for (const Rows* rows : {&got, &cpu}) {
          const float* mine = rows->Row(query, 0, row).data();
          const float* other = rows->Row(!query, 0, 1).data();
          ASSERT_EQ(EdgeRate(MembershipDot(mine, other, network.rank()), 0.0f), 0.0f) << row;
        }
        const float bound = got.Bound(query, 0, row);
        ASSERT_TRUE(std::isnan(bound) || (rank == 0 && query && bound == 0.0f)) << bound;
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
