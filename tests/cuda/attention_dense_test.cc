// Dense heads against the float64 reference, in both precisions: which heads they are, the same edges, the same sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/cuda/attention_dense_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::LargestDifference;
using ::edgewise::testing::Outcome;
using ::edgewise::testing::RunReference;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::DenseCase;
using testing::Drawn;
using testing::Get;

double LargestValue(const std::vector<float>& values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

// Outputs and counts; `dense`: how many heads are.
void ExpectReference(const Case& from, int dense, bool bf16, const std::vector<EdgeCap>& caps) {
  const Outcome want = RunReference(from, caps);
  std::vector<DeviceCap> device_caps;
  for (const EdgeCap& cap : caps) device_caps.push_back(testing::CapOf(cap.max_edges));
  DenseCase device(from, bf16, device_caps);
  EXPECT_LE(LargestDifference(device.Attend(from), want.out), bf16 ? 2e-2 * LargestValue(want.out) : 1e-4);
  const std::vector<DeviceHeadCounts> counts = device.Counts();
  int found = 0;
  for (size_t p = 0; p < device.problems.size(); ++p) {
    for (int h = 0; h < from.inputs.num_heads; ++h) {
      EXPECT_EQ(counts[device.problems[p].count + h].edges, want.reports[p].heads[h].edges) << p << " " << h;
      EXPECT_EQ(counts[device.problems[p].count + h].isolated, want.reports[p].heads[h].isolated) << p << " " << h;
      found += device.IsDense(p, h) ? 1 : 0;
    }
  }
  EXPECT_EQ(found, dense);
}

void ExpectReference(const Case& from, int dense, const std::vector<EdgeCap>& caps = {}) {
  for (const bool bf16 : {false, true}) ExpectReference(from, dense, bf16, caps);
}

class AttentionDenseTest : public ::testing::Test {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

TEST_F(AttentionDenseTest, EveryDensityMatchesTheReference) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    for (const double rate : {0.0, 0.004, 0.3, 0.6, 4.0}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(rate));
      Shape shape;
      shape.lengths = {130, 64};
      shape.mean_rate = rate;
      shape.spread = rate == 4.0 ? 0.0 : 0.3;
      shape.rank = 48;
      Case made(shape);
      made.AddProblems(Drawn(law));
      ExpectReference(made, rate > 0.1 ? 4 : 0);
    }
  }
}

TEST_F(AttentionDenseTest, EveryLengthForcedEdgeAndExplorationMatchesTheReference) {
  for (const int length : {1, 2, 16, 17, 63, 65, 200}) {
    for (const int window : {0, 8, 500}) {
      SCOPED_TRACE(std::to_string(length) + " " + std::to_string(window));
      Shape shape;
      shape.lengths = {length};
      shape.heads = 1;
      shape.mean_rate = 0.2;
      shape.spread = 0.0;
      Case made(shape);
      DrawnRows drawn = Drawn(Law::kBernoulli);
      drawn.self_loops = true;
      drawn.local_window = window;
      drawn.exploration = window == 8 ? 0.2f : 0.0f;
      made.AddProblems(drawn);
      ExpectReference(made, 1);
    }
  }
}

TEST_F(AttentionDenseTest, EveryDimensionMatchesTheReference) {
  const std::pair<int, int> dims[] = {{8, 8},   {16, 16}, {40, 40}, {64, 64}, {128, 128},
                                      {32, 48}, {16, 8},  {96, 40}, {64, 256}};
  for (const auto& [head_dim, value_dim] : dims) {
    SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {70};
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.mean_rate = 0.5;
    shape.spread = 0.2;
    shape.one_matrix = head_dim == value_dim;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    ExpectReference(made, 2);
  }
}

TEST_F(AttentionDenseTest, BiasesMatchTheReference) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  Shape shape;
  shape.lengths = {90};
  shape.mean_rate = 0.5;
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  std::vector<float> distance, values;
  for (int i = 0; i < shape.heads * 179; ++i) distance.push_back(normal(random));
  for (int i = 0; i < 90 * 90; ++i) values.push_back(normal(random));
  PairwiseBias bias;
  bias.length = 90;
  bias.values = values.data();
  made.inputs.distance_bias = distance.data();
  made.inputs.distance_span = 90;
  made.problems[0].bias = &bias;
  ExpectReference(made, 2);
}

// Head 0 is dense and head 1 is not, also in a sequence with gaps.
TEST_F(AttentionDenseTest, EachHeadGoesItsWay) {
  Shape shape;
  shape.lengths = {150, 40};
  shape.mean_rate = 0.4;
  Case made(shape);
  const auto rank = static_cast<size_t>(shape.rank), rows = made.x.size() / rank / 2;
  for (size_t i = rows * rank; i < 2 * rows * rank; ++i) made.x[i] *= 0.02f;
  made.positions[1].back() += 1;
  made.AddProblems(Drawn(Law::kBernoulli));
  ExpectReference(made, 2);
  DenseCase device(made, false);
  device.Attend(made);
  for (int p = 0; p < 2; ++p) {
    EXPECT_TRUE(device.IsDense(p, 0));
    EXPECT_FALSE(device.IsDense(p, 1));
  }
}

TEST_F(AttentionDenseTest, HeadsWithMultiplicityAreNeverDense) {
  Shape shape;
  shape.lengths = {40};
  shape.mean_rate = 1.0;
  Case made(shape);
  made.AddProblems(Drawn(Law::kPoissonMulti));
  const DenseCase device(made, false);
  EXPECT_FALSE(device.problems[0].may_be_dense);
}

TEST_F(AttentionDenseTest, CapsMatchTheReference) {
  for (const uint64_t most : {200u, 3000u, 1u << 20}) {
    SCOPED_TRACE(std::to_string(most));
    Shape shape;
    shape.lengths = {100};
    shape.mean_rate = 0.5;
    Case made(shape);
    DrawnRows drawn = Drawn(Law::kBernoulli);
    drawn.self_loops = true;
    made.AddProblems(drawn, 0);
    EdgeCap cap;
    cap.max_edges = most;
    ExpectReference(made, most == 200 ? 0 : 2, {cap});
  }
}

TEST_F(AttentionDenseTest, OrderAndCompanyChangeNoBit) {
  for (const bool bf16 : {false, true}) {
    Shape shape;
    shape.lengths = {70, 130};
    shape.mean_rate = 0.3;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const std::vector<float> want = DenseCase(made, bf16).Attend(made);
    for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(3), emulator::Shuffled(4)}) {
      emulator::SetOrder(order);
      EXPECT_TRUE(SameBytes(DenseCase(made, bf16).Attend(made), want));
    }
    emulator::SetOrder(emulator::kForward);
    DenseCase device(made, bf16);
    device.Keep();
    for (int64_t item = device.call.num_dense_items - 1; item >= 0; --item) {
      DeviceCall one = device.call;
      one.dense_items += item;
      one.num_dense_items = 1;
      EXPECT_EQ(AttendTiles(nullptr, one), cudaSuccess);
    }
    EXPECT_TRUE(SameBytes(Get(device.call.out, made.out_rows * device.call.out_stride), want));
  }
}

TEST_F(AttentionDenseTest, ScoresThatOverflowGiveNaNToTheirRowsOnly) {
  Shape shape;
  shape.lengths = {80};
  shape.heads = 1;
  shape.mean_rate = 0.5;
  Case made(shape);
  made.AddProblems(Drawn(Law::kBernoulli));
  const std::vector<float> want = RunReference(made).out;
  for (int c = 0; c < shape.head_dim; ++c) made.data[20 * shape.head_dim + c] = c % 2 == 0 ? 3e38f : -3e38f;
  for (const bool bf16 : {false, true}) {
    const std::vector<float> out = DenseCase(made, bf16).Attend(made);
    for (int row = 0; row < 80; ++row) {
      for (int c = 0; c < shape.head_dim; ++c) {
        const float value = out[row * shape.head_dim + c];
        if (row == 20) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_NEAR(value, want[row * shape.head_dim + c], bf16 ? 5e-2 : 1e-4) << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::cuda
