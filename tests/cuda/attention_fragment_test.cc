// Edges as mask bits of tensor-core fragments: bit for bit those of the definition, however little settles a pair.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/draw_fragment.cuh"
#include "kernels/reference/reference.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::Shape;
using testing::DeviceCase;
using testing::DeviceCopies;
using testing::Get;

DrawnRows DrawnBy(Law law) {
  DrawnRows drawn;
  drawn.law = law;
  drawn.key.seed = 7;
  drawn.key.layer = 3;
  return drawn;
}

// One warp a fragment of rows, over all tiles: to [rows of the call, tiles, lanes].
__global__ void __launch_bounds__(kWarpSize)
    DumpFragments(const __grid_constant__ DeviceCall call, const FragmentRows* rows, int tiles, uint32_t* to) {
  const FragmentDraw draw(call, rows[blockIdx.x]);
  for (int tile = 0; tile < tiles; ++tile) {
    const int lane = static_cast<int>(threadIdx.x);
    FragmentDraw::Settled settled = draw.Begin(tile * kTileKeys);
    for (; settled.open != 0; settled.open &= settled.open - 1) {
      const int bit = __ffs(static_cast<int>(settled.open)) - 1;
      if (draw.IsEdge(tile * kTileKeys, lane, bit)) settled.edges |= 1u << bit;
    }
    to[(static_cast<int64_t>(blockIdx.x) * tiles + tile) * kWarpSize + lane] = settled.edges;
  }
}

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// The edges of one head of problem 0.
Pairs EdgesOf(const DeviceCase& device, int32_t head) {
  const int32_t n = device.problems[0].tokens;
  std::vector<FragmentRows> rows;
  for (int32_t i = 0; i < n; i += kWarpQueries) rows.push_back({0, head, i, std::min(n - i, kWarpQueries)});
  const int tiles = (n + kTileKeys - 1) / kTileKeys;
  DeviceCopies memory;
  uint32_t* to = memory.Put(std::vector<uint32_t>(rows.size() * tiles * kWarpSize));
  EXPECT_EQ(Launch(nullptr, static_cast<int64_t>(rows.size()), kWarpSize, 0, DumpFragments, device.call,
                   memory.Put(rows), tiles, to),
            cudaSuccess);
  const std::vector<uint32_t> words = Get(to, static_cast<int64_t>(rows.size()) * tiles * kWarpSize);
  Pairs edges;
  for (size_t w = 0; w < words.size(); ++w) {
    const FragmentRows& of = rows[w / (tiles * kWarpSize)];
    const auto lane = static_cast<int32_t>(w % kWarpSize), tile = static_cast<int32_t>(w / kWarpSize % tiles);
    for (int32_t bit = 0; bit < 32; ++bit) {
      if ((words[w] >> bit & 1u) == 0) continue;
      const int32_t row = lane / 4 + bit / 16 * 8;
      EXPECT_LT(row, of.rows);
      edges.emplace_back(of.first_query + row, tile * kTileKeys + bit % 16 / 2 * 8 + lane % 4 * 2 + bit % 2);
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

Pairs Definition(const Case& from, int32_t head) {
  Pairs edges;
  for (const reference::Edge& edge : reference::DrawEdges(from.inputs, from.problems[0], head)) {
    edges.emplace_back(edge.query, edge.key);
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

void ExpectDefinition(const Case& from) {
  const DeviceCase device(from);
  for (int head = 0; head < from.inputs.num_heads; ++head) {
    const Pairs want = Definition(from, head);
    ASSERT_EQ(EdgesOf(device, head), want) << "head " << head;
  }
}

// Sets every inner product of memberships to one of `rates`, by turns.
void SetRates(Case& from, const std::vector<float>& rates) {
  const auto rank = static_cast<size_t>(from.inputs.memberships.rank);
  for (size_t row = 0; row < from.x.size() / rank; ++row) {
    for (size_t t = 0; t < rank; ++t) {
      from.x[row * rank + t] = t == 3 ? rates[row % rates.size()] : 0.0f;
      from.y[row * rank + t] = t == 3 ? 1.0f : 0.0f;
    }
    from.query_bound[row] = rates[row % rates.size()];
    from.key_bound[row] = 1.0f;
  }
}

class AttentionFragmentTest : public ::testing::Test {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

TEST_F(AttentionFragmentTest, WordsOfARowAreDealtAsScoresAre) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100; ++i) {
    const uint64_t keys = random();
    uint64_t back = 0;
    for (int thread = 0; thread < 4; ++thread) {
      const uint32_t part = FragmentOf(keys, thread);
      ASSERT_LT(part, 1u << 16);
      for (int bit = 0; bit < 16; ++bit) {
        back |= static_cast<uint64_t>(part >> bit & 1u) << (bit / 2 * 8 + 2 * thread + bit % 2);
      }
    }
    EXPECT_EQ(back, keys);
  }
}

TEST_F(AttentionFragmentTest, RangesOfKeysAreCutToTheTile) {
  for (int first = -70; first <= 130; ++first) {
    for (const int last : {first - 1, first, first + 1, first + 30, first + 63, first + 64, first + 200}) {
      uint64_t want = 0;
      for (int key = 0; key < kTileKeys; ++key) want |= static_cast<uint64_t>(key >= first && key <= last) << key;
      EXPECT_EQ(KeyRange(first, last), want) << first << " " << last;
    }
  }
}

TEST_F(AttentionFragmentTest, EveryDensityAndLawIsTheDefinition) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    for (const double rate : {0.0, 0.004, 0.03, 0.3, 0.6, 1.0, 4.0}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(rate));
      Shape shape;
      shape.lengths = {150};
      shape.mean_rate = rate;
      shape.rank = rate == 0.3 ? 48 : 16;
      Case made(shape);
      DrawnRows drawn = DrawnBy(law);
      drawn.exploration = rate == 0.03 ? 0.1f : 0.0f;
      made.AddProblems(drawn);
      ExpectDefinition(made);
    }
  }
}

TEST_F(AttentionFragmentTest, EveryLengthAndForcedEdgeIsTheDefinition) {
  for (const int length : {1, 2, 15, 17, 63, 64, 65, 129}) {
    for (const int window : {-1, 0, 8, 300}) {
      SCOPED_TRACE(std::to_string(length) + " " + std::to_string(window));
      Shape shape;
      shape.lengths = {length};
      shape.heads = 1;
      shape.mean_rate = 0.05;
      Case made(shape);
      DrawnRows drawn = DrawnBy(Law::kBernoulli);
      drawn.self_loops = window == 0;
      drawn.local_window = std::max(window, 0);
      made.AddProblems(drawn);
      ExpectDefinition(made);
    }
  }
}

TEST_F(AttentionFragmentTest, SequencesWithGapsAreTheDefinition) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    for (const int window : {0, 1, 8, 300}) {
      Shape shape;
      shape.lengths = {100};
      shape.mean_rate = 0.3;
      shape.gap_share = 0.3;
      Case made(shape);
      DrawnRows drawn = DrawnBy(law);
      drawn.self_loops = window == 0;
      drawn.local_window = window;
      made.AddProblems(drawn);
      ExpectDefinition(made);
    }
  }
}

// Rates at which the byte alone never settles, within a bit of float32 of a step of it; and terms that cancel.
TEST_F(AttentionFragmentTest, RatesOnTheEdgeOfAByteAreTheDefinition) {
  std::vector<float> rates;
  for (const int byte : {0, 1, 2, 127, 128, 255, 256}) {
    const float at = static_cast<float>(byte) / 256.0f;
    for (const float rate : {std::nextafter(at, -1.0f), at, std::nextafter(at, 2.0f)}) rates.push_back(rate);
  }
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    Shape shape;
    shape.lengths = {200};
    shape.heads = 1;
    Case made(shape);
    SetRates(made, rates);
    made.AddProblems(DrawnBy(law));
    ExpectDefinition(made);
  }
}

TEST_F(AttentionFragmentTest, MembershipsThatCancelAreTheDefinition) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (const float size : {0.2f, 1.0f, 30.0f}) {
    Shape shape;
    shape.lengths = {200};
    shape.rank = 64;
    Case made(shape);
    for (auto [side, bounds] : {std::pair(&made.x, &made.query_bound), std::pair(&made.y, &made.key_bound)}) {
      for (float& value : *side) value = size * normal(random);
      for (size_t row = 0; row < bounds->size(); ++row) {
        double square = 0.0;
        for (int t = 0; t < 64; ++t) square += std::pow((*side)[64 * row + t], 2.0);
        (*bounds)[row] = static_cast<float>(std::sqrt(square) * 1.000001);
      }
    }
    made.AddProblems(DrawnBy(Law::kBernoulli));
    ExpectDefinition(made);
  }
}

TEST_F(AttentionFragmentTest, MembershipsThatAreNotFiniteAreTheDefinition) {
  Shape shape;
  shape.lengths = {100};
  shape.heads = 1;
  shape.mean_rate = 0.3;
  Case made(shape);
  made.x[5 * 32] = NAN;
  made.query_bound[5] = NAN;
  made.y[70 * 32 + 1] = INFINITY;
  made.key_bound[70] = INFINITY;
  for (int row = 10; row < 100; ++row) {  // 0 times infinity bounds nothing
    std::fill_n(made.x.begin() + row * 32, 32, 0.0f);
    made.query_bound[row] = 0.0f;
  }
  DrawnRows drawn = DrawnBy(Law::kBernoulli);
  drawn.exploration = 76.5f / 256.0f;
  made.AddProblems(drawn);
  ExpectDefinition(made);
}

// Under a cap that drops edges: what the other kernels keep, with ties of age too.
TEST_F(AttentionFragmentTest, ACapKeepsTheEdgesThatTheListHas) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    for (const double rate : {0.05, 0.6}) {
      for (const uint64_t most : {0u, 1u, 100u, 1500u, 1u << 20}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(rate) + " " + std::to_string(most));
        Shape shape;
        shape.lengths = {130};
        shape.mean_rate = rate;
        Case made(shape);
        made.AddProblems(DrawnBy(law), 0);
        DeviceCase device(made, {testing::CapOf(most)});
        device.Select();
        const testing::Listed listed = testing::List(device, 0);
        for (int head = 0; head < 2; ++head) {
          Pairs want;
          for (int32_t i = 0; i < 130; ++i) {
            const auto row = static_cast<size_t>(head) * 131 + static_cast<size_t>(i);
            for (int64_t e = listed.row_offsets[row]; e < listed.row_offsets[row + 1]; ++e) {
              want.emplace_back(i, listed.keys[static_cast<size_t>(e)]);
            }
          }
          ASSERT_EQ(EdgesOf(device, head), want);
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
