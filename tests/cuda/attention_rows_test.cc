// The row kernel against the float64 reference: the same graphs, the same sums, whatever is beside an item.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/reference.h"
#include "tests/cuda/attention_rows_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::RunReference;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::AttendCase;
using testing::DeviceCase;
using testing::Drawn;
using testing::ExpectReference;
using testing::Get;
using testing::kLaws;
using testing::RoundOperands;

class AttentionRowsTest : public ::testing::Test {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }
};

TEST_F(AttentionRowsTest, EveryLengthAndLawMatchesTheReference) {
  for (const Law law : kLaws) {
    SCOPED_TRACE(static_cast<int>(law));
    Shape shape;
    shape.lengths = {1, 3, 33, 64, 65, 200};
    shape.mean_rate = 0.1;
    shape.rank = 16;
    Case made(shape);
    made.AddProblems(Drawn(law));
    ExpectReference(made);
  }
}

TEST_F(AttentionRowsTest, EveryDensityMatchesTheReference) {
  for (const double rate : {0.0, 0.004, 0.03, 0.3, 0.6, 1.0, 4.0}) {
    for (const Law law : kLaws) {
      SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(static_cast<int>(law)));
      Shape shape;
      shape.lengths = {130};
      shape.heads = 1;
      shape.mean_rate = rate;
      shape.spread = rate == 4.0 ? 0.0 : 0.5;
      shape.rank = 48;
      Case made(shape);
      made.AddProblems(Drawn(law));
      ExpectReference(made);
    }
  }
}

TEST_F(AttentionRowsTest, ForcedEdgesGapsAndExplorationMatchTheReference) {
  for (const Law law : kLaws) {
    for (const double gaps : {0.0, 0.3}) {
      for (const int window : {0, 1, 8, 150}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(gaps) + " " + std::to_string(window));
        Shape shape;
        shape.lengths = {100, 7};
        shape.mean_rate = 0.02;
        shape.gap_share = gaps;
        Case made(shape);
        DrawnRows drawn = Drawn(law);
        drawn.self_loops = window == 0;
        drawn.local_window = window;
        drawn.exploration = window == 8 ? 0.1f : 0.0f;
        made.AddProblems(drawn);
        ExpectReference(made);
      }
    }
  }
}

TEST_F(AttentionRowsTest, EveryDimensionMatchesTheReference) {
  const std::pair<int, int> dims[] = {{8, 8},   {16, 16},  {40, 40}, {64, 64}, {128, 128}, {256, 256},
                                      {32, 48}, {64, 200}, {16, 8},  {8, 96},  {96, 40}};
  for (const auto& [head_dim, value_dim] : dims) {
    SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim));
    Shape shape;
    shape.lengths = {70, 5};
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.mean_rate = 0.1;
    shape.spread = 0.2;
    shape.one_matrix = head_dim == value_dim;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    ExpectReference(made, false);
  }
}

TEST_F(AttentionRowsTest, BiasesMatchTheReference) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const int kind : {0, 1, 2, 3}) {
    SCOPED_TRACE(kind);
    Shape shape;
    shape.lengths = {60, 70};
    shape.mean_rate = 0.05;
    shape.gap_share = 0.2;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const int32_t span = std::max(made.positions[0].back(), made.positions[1].back()) + 1;
    std::vector<float> distance, values, table;
    std::vector<uint8_t> buckets;
    for (int i = 0; i < shape.heads * (2 * span - 1); ++i) distance.push_back(normal(random));
    for (int i = 0; i < shape.heads * 256; ++i) table.push_back(normal(random));
    for (int i = 0; i < span * span; ++i) {
      values.push_back(normal(random));
      buckets.push_back(static_cast<uint8_t>(random()));
    }
    PairwiseBias bias;
    bias.length = span;
    if (kind == 1) bias.values = values.data();
    if (kind >= 2) bias.buckets = buckets.data(), bias.table = table.data();
    if (kind == 0 || kind == 3) {
      made.inputs.distance_bias = distance.data();
      made.inputs.distance_span = span;
    }
    if (kind > 0) made.problems[1].bias = &bias;
    ExpectReference(made, false);
  }
}

TEST_F(AttentionRowsTest, OrderAndCompanyChangeNoBit) {
  for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
    for (const bool bf16 : {false, true}) {
      Shape shape;
      shape.lengths = {70, 50};
      shape.mean_rate = 0.1;
      Case made(shape);
      made.AddProblems(Drawn(law));
      const std::vector<float> want = AttendCase(made, bf16);
      for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(3), emulator::Shuffled(4)}) {
        emulator::SetOrder(order);
        EXPECT_TRUE(SameBytes(AttendCase(made, bf16), want));
      }
      emulator::SetOrder(emulator::kForward);
      DeviceCase device(made);
      if (bf16) RoundOperands(made, device);
      const DeviceCall call = device.call;
      for (int64_t item = call.num_row_items - 1; item >= 0; --item) {
        device.call.row_items = call.row_items + item;
        device.call.num_row_items = 1;
        EXPECT_EQ(AttendRows(nullptr, device.call), cudaSuccess);
      }
      EXPECT_TRUE(SameBytes(Get(call.out, made.out_rows * call.out_stride), want));
    }
  }
}

TEST_F(AttentionRowsTest, ScoresThatOverflowGiveNaNToTheirRowsOnly) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16 ? "bf16" : "fp32");
    Shape shape;
    shape.lengths = {40};
    shape.heads = 1;
    shape.mean_rate = 0.1;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const std::vector<float> want = RunReference(made).out;
    for (int c = 0; c < shape.head_dim; ++c) made.data[20 * shape.head_dim + c] = c % 2 == 0 ? 3e38f : -3e38f;
    const std::vector<float> out = AttendCase(made, bf16);
    const auto edges = reference::DrawEdges(made.inputs, made.problems[0], 0);
    for (int row = 0; row < 40; ++row) {
      const bool isolated =
          std::none_of(edges.begin(), edges.end(), [&](const reference::Edge& edge) { return edge.query == row; });
      for (int c = 0; c < shape.head_dim; ++c) {
        const float value = out[row * shape.head_dim + c];
        if (row == 20 && !isolated) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_NEAR(value, want[row * shape.head_dim + c], bf16 ? 5e-2 : 1e-4);
        }
      }
    }
  }
}

TEST_F(AttentionRowsTest, HeadsThatAreTooWideAreRefused) {
  DeviceCall call = {};
  call.head_dim = kTileKeys;
  call.value_dim = 257;
  call.num_row_items = 1;
  EXPECT_EQ(AttendRows(nullptr, call), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace edgewise::cuda
