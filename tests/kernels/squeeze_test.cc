// Bounds of p from four bytes a key (kernels/cpu/simd/squeeze_avx512.inl) hold for any memberships, and edges that they
// decide are those of the definition.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/draw/draw.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::Outcome;
using testing::Shape;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kHostileKinds = 12;

// Makes a vector of memberships one of kinds that bounds may fail for.
void MakeHostile(int kind, std::span<float> v) {
  for (size_t t = 0; t < v.size(); ++t) {
    switch (kind) {
      case 0:
        v[t] = 0.0f;
        break;
      case 1:
        v[t] *= -1.0f;
        break;
      case 2:
        v[t] *= t % 2 == 0 ? -1.0f : 1.0f;
        break;
      case 3:
        v[t] *= 1e4f;
        break;
      case 4:
        v[t] *= 1e-18f;
        break;
      case 5:
        v[t] *= 1e-42f;
        break;
      case 6:
        v[t] = t == 3 ? v[t] : 0.0f;
        break;
      case 7:
        v[t] = t == 3 ? std::nanf("") : v[t];
        break;
      case 8:
        v[t] = t == 3 ? kInfinity : v[t];
        break;
      case 9:
        v[t] = t == 3 ? -kInfinity : v[t];
        break;
      case 10:
        v[t] *= 1e30f;
        break;
      default:
        v[t] = t < 8 ? 100.0f * v[t] : v[t];
    }
  }
}

// A multiple of 2^-7 beyond the width that one rounding to 16 bits takes, on either side.
constexpr float kTwoRoundings = 1.008f * 1.008f;

TEST(SqueezeTest, BoundsHoldForHostileMemberships) {
  if (!SelectIsa("avx512").ok()) GTEST_SKIP() << "needs AVX-512";
  const auto split = KernelsFor(Isa::kAvx512).split_key;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  int decided = 0;
  for (const int rank : {16, 32, 48, 64, 128, 256, 512}) {
    for (const float noise : {0.0f, 1e-4f, 0.01f, 0.3f, 3.0f}) {
      for (int trial = 0; trial < 40 * kHostileKinds; ++trial) {
        const float root = 1.0f / std::sqrt(static_cast<float>(rank));
        std::vector<float> unit(rank, root), x(rank), y(rank);
        for (float& value : x) value = root * (1.0f + noise * normal(random));
        for (float& value : y) value = root * (1.0f + noise * normal(random));
        if (trial % 3 != 0) MakeHostile(static_cast<int>(random() % kHostileKinds), y);
        if (trial % 5 == 0) MakeHostile(static_cast<int>(random() % kHostileKinds), x);
        const uint32_t a = split(x.data(), unit.data(), rank), b = split(y.data(), unit.data(), rank);
        const auto along = [](uint32_t word) { return std::bit_cast<float>(word & 0xFFFF0000u); };
        const auto across = [](uint32_t word) { return std::bit_cast<float>(word << 16); };
        const float middle = along(a) * along(b), width = across(a) * across(b);
        const float dot = MembershipDot(x.data(), y.data(), rank);
        const std::string what = std::to_string(rank) + " " + std::to_string(noise) + " " + std::to_string(trial);
        ASSERT_FALSE(dot < middle - width) << what;
        ASSERT_FALSE(dot > middle * kTwoRoundings + width) << what;
        if (!std::isfinite(dot)) {
          ASSERT_TRUE(std::isinf(width)) << "a product without bounds: " << what;
        }
        decided += width < 0.05f * middle ? 1 : 0;
      }
    }
  }
  EXPECT_GT(decided, 1000) << "bounds that are never close decide nothing";
}

class SqueezedDrawTest : public testing::DeviceTest {
 protected:
  // Graphs, free and under caps, of a sequence whose keys, and where there are several kinds queries, first, first +
  // step, .. are hostile.
  void Check(int rank, double rate, float exploration, int first, int step, std::span<const int> kinds, double gaps) {
    SCOPED_TRACE(std::to_string(rank) + " " + std::to_string(rate) + " " + std::to_string(step));
    Shape shape;
    shape.lengths = {400};
    shape.heads = 1;
    shape.rank = rank;
    shape.mean_rate = rate;
    shape.spread = step == 3 ? 0.1 : 0.0;  // equal memberships: nothing hides a bound that is too close
    shape.gap_share = gaps;
    shape.seed = static_cast<uint32_t>(rank);
    Case made(shape);
    size_t next = 0;
    for (int row = first; row < 400; row += step) {
      const int kind = kinds[next++ % kinds.size()];
      const bool query = kinds.size() > 1 && next % 4 == 0;
      const std::span<float> v(&(query ? made.x : made.y)[static_cast<size_t>(row) * rank], static_cast<size_t>(rank));
      MakeHostile(kind, v);
      double square = 0.0;
      for (const float value : v) square += static_cast<double>(value) * value;
      const auto bound = static_cast<float>(std::sqrt(square) * 1.0001 + 1e-30);
      (query ? made.query_bound : made.key_bound)[row] = std::isnan(bound) ? 1.0f : bound;
    }
    DrawnRows drawn;
    drawn.exploration = exploration;
    drawn.key.seed = 77;
    made.AddProblems(drawn);
    made.problems[0].report->wanted.graph = true;
    const uint64_t edges = ExpectReferenceGraph(made, {});
    EXPECT_GT(edges, 0u);
    made.problems[0].cap = 0;
    for (const double share : {0.1, 0.6}) {
      ExpectReferenceGraph(made, {EdgeCap{static_cast<uint64_t>(share * static_cast<double>(edges))}});
    }
  }

  // Returns its edges.
  uint64_t ExpectReferenceGraph(const Case& made, const std::vector<EdgeCap>& caps) {
    const Outcome got = Run(made, caps), want = testing::RunReference(made, caps);
    const HeadEdges& a = got.reports[0].heads[0].graph;
    const HeadEdges& b = want.reports[0].heads[0].graph;
    EXPECT_EQ(a.row_offsets, b.row_offsets);
    EXPECT_EQ(a.keys, b.keys);
    return b.keys.size();
  }
};
EDGEWISE_TEST_ON(Cpus, SqueezedDrawTest);

TEST_P(SqueezedDrawTest, HostileMembershipsGiveTheReferenceGraph) {
  const std::vector<int> any = {7, 0, 8, 1, 2, 9, 3, 4, 10, 5, 6, 11}, finite = {0, 1, 2, 4, 5, 6, 11};
  const absl::StatusOr<Isa> isa = SelectIsa(GetParam().name);
  if (isa.ok() && KernelsFor(*isa).split_key == nullptr) {  // draws pair by pair
    Check(16, 0.04, 0.0f, 5, 12, any, 0.0);
    return;
  }
  for (const int kind : {0, 5, 7, 8, 10}) {  // of all keys that the direction is taken from
    Check(128, 0.04, 0.0f, 0, 3, std::span(&kind, 1), 0.0);
  }
  for (const int rank : {16, 64, 128, 512}) {
    for (const double rate : {0.04, 0.5}) {
      for (const int step : {3, 12}) {
        if (rank == 512 && step == 3) continue;  // takes long
        Check(rank, rate, 0.0f, 5, step, any, 0.0);
        Check(rank, rate, rate < 0.1 ? 0.01f : 0.0f, 5, step, finite, step == 12 ? 0.3 : 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace edgewise
