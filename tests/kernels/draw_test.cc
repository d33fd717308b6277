// Every device draws the graph of kernels/draw/draw.h, pair by pair, on each of its ways.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::Outcome;
using testing::Shape;

class DrawTest : public testing::DeviceTest {
 protected:
  void Check(const Shape& shape, const DrawnRows& drawn) {
    Case made(shape);
    made.AddProblems(drawn);
    made.AskForAll();
    ExpectReference(made);
  }
};
EDGEWISE_TEST_ON(Devices, DrawTest);

TEST_P(DrawTest, AnyRowsAreThoseOfTheReference) {
  std::mt19937 random(7);
  const auto pick = [&](auto... values) {
    const double options[] = {static_cast<double>(values)...};
    return options[random() % (sizeof(options) / sizeof(double))];
  };
  const int longest = Sized(300, 100);
  for (int round = 0; round < Sized(60, 30); ++round) {
    SCOPED_TRACE(round);
    Shape shape;
    shape.seed = static_cast<uint32_t>(round + 100);
    shape.lengths = {static_cast<int>(1 + random() % longest), static_cast<int>(1 + random() % 40)};
    shape.heads = static_cast<int>(1 + random() % 3);
    shape.head_dim = Aligned(static_cast<int>(pick(8, 16, 20, 32, 64)));
    shape.value_dim = static_cast<int>(pick(0, 24));
    shape.rank = static_cast<int>(pick(16, 32, 48, 64, 128));
    shape.mean_rate = pick(1e-12, 0.001, 0.01, 0.05, 0.2, 0.6, 1.0, 3.0);
    shape.spread = pick(0.0, 0.2, 0.5, 1.0);
    shape.gap_share = pick(0.0, 0.0, 0.1, 0.7);
    shape.one_matrix = random() % 2 == 0;
    DrawnRows drawn;
    drawn.law = static_cast<Law>(random() % 3);
    drawn.exploration = static_cast<float>(pick(0.0, 0.0, 0.01, 1.0));
    drawn.self_loops = random() % 3 == 0;
    drawn.local_window = static_cast<int32_t>(pick(0, 0, 1, 2, 7, 64, 150));
    drawn.key.seed = static_cast<uint64_t>(random()) << 32 | random();
    drawn.key.sample = random() % 5;
    drawn.key.layer = random() % 4096;
    drawn.key.side = random() % 2;
    Check(shape, drawn);
    if (HasFailure()) return;
  }
}

TEST_P(DrawTest, LongSequencesGiveTheReferenceGraph) {
  for (const double rate : {0.01, 0.3, 0.999}) {
    SCOPED_TRACE(rate);
    Shape shape;
    shape.lengths = {Sized(1300, 300)};  // more queries than the 1032 of a block of a CPU
    shape.heads = 1;
    shape.mean_rate = rate;
    shape.spread = 0.3;
    shape.seed = 5;
    Check(shape, DrawnRows{});
    if (HasFailure()) return;
  }
}

class GpuDrawTest : public DrawTest {};
EDGEWISE_TEST_ON(Gpus, GpuDrawTest);

TEST_P(GpuDrawTest, RowsOverSeveralChunksOfKeysGiveTheReferenceGraph) {
  if (on_emulator_ && GetParam().bf16) GTEST_SKIP() << "takes long, and edges do not depend on the precision";
  Shape shape;
  shape.lengths = {4096 + 70};  // keys of a chunk, and some
  shape.heads = 1;
  shape.head_dim = 8;
  shape.rank = 16;
  shape.mean_rate = 0.003;
  Check(shape, DrawnRows{.law = Law::kPoissonMulti, .local_window = 20});
}

// Rates at which the high byte decides nothing: multiples of 1/256 and their float neighbours, and tiny ones.
TEST_P(DrawTest, RatesOnByteBoundariesGiveTheReferenceGraph) {
  const int n = Sized(700, 360), steps = n - 100;  // so that every step of the byte is met
  Shape shape;
  shape.lengths = {n};
  shape.heads = 1;
  shape.rank = 16;
  for (const Law law : {Law::kBernoulli, Law::kPoissonSet}) {
    Case made(shape);
    std::fill(made.x.begin(), made.x.end(), 0.0f);
    std::fill(made.y.begin(), made.y.end(), 0.0f);
    for (int i = 0; i < n; ++i) {
      const float exact = static_cast<float>(i % 257) / 256.0f;
      const float towards = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 2.0f : exact;
      made.x[16 * i] = i < steps ? std::nextafter(exact, towards) : std::ldexp(1.0f, -(i - steps));
      made.y[16 * i] = 1.0f;
      made.query_bound[i] = made.x[16 * i];
      made.key_bound[i] = 1.0f;
    }
    made.AddProblems(DrawnRows{.law = law});
    made.AskForAll();
    ExpectReference(made);
  }
}

// Memberships of any sign, as those of a block matrix that is not positive: rates are clamped from both sides.
TEST_P(DrawTest, NegativeAndLargeProductsGiveTheReferenceGraph) {
  for (const double rate : {0.05, 2.0, 300.0}) {
    Shape shape;
    shape.lengths = {Sized(333, 130)};
    shape.mean_rate = rate;
    shape.spread = 3.0;
    for (const float exploration : {0.0f, 0.01f}) {
      SCOPED_TRACE(std::to_string(rate) + " explored " + std::to_string(exploration));
      Check(shape, DrawnRows{.exploration = exploration});
      if (HasFailure()) return;
    }
  }
}

// As many edges as pairs, for all that the bounds say.
TEST_P(DrawTest, BoundsThatAreUselessChangeNothing) {
  Shape shape;
  shape.lengths = {40};
  Case made(shape);
  made.query_bound.assign(made.query_bound.size(), INFINITY);
  made.AddProblems(DrawnRows{});
  made.AskForAll();
  ExpectReference(made);
}

TEST_P(DrawTest, SequencesHeadsSamplesLayersSidesAndSeedsDrawApart) {
  Shape shape;
  shape.lengths = {Sized(200, 60)};
  shape.heads = 2;
  shape.mean_rate = 0.3;
  Case made(shape);
  std::vector<DrawnRows> draws(5);
  draws[1].key.sample = 1;
  draws[2].key.layer = 1;
  draws[3].key.side = 1;
  draws[4].key.seed = 1;
  for (const DrawnRows& drawn : draws) made.AddProblems(drawn);
  made.AskForAll();
  std::vector<std::vector<int32_t>> graphs;
  for (const AttentionReport& report : Run(made).reports) {
    for (const HeadReport& head : report.heads) graphs.push_back(head.graph.keys);
  }
  for (size_t a = 0; a < graphs.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(graphs[a], graphs[b]) << a << " and " << b;
  }
}

}  // namespace
}  // namespace edgewise
