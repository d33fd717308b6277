// How edge caps are searched on the CPU: how often blocks are drawn, and what that holds.
#include <cmath>

#include "kernels/cpu/attention/cap.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::EdgesUnder;
using testing::kLaws;
using testing::RunOn;
using testing::RunReference;
using testing::Shape;

class CapRunsTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CapRunsTest);

// The parts of a call of one block: runs of a search, but the one that attends and the one that counts expected edges.
int CountRuns(Backend& backend, const Case& made, uint64_t cap) {
  std::vector<EdgeCap> caps = {EdgeCap{cap}};
  const int64_t tokens = made.problems[0].tokens;
  std::vector<float> out(static_cast<size_t>(tokens * made.inputs.head_dim));
  auto parts =
      backend.AttendInParts(made.inputs, made.problems, caps, Matrix(out.data(), tokens, made.inputs.head_dim));
  EXPECT_TRUE(parts.ok());
  int runs = 0;
  while (!*(*parts)->Next(0.5)) ++runs;
  return runs - (made.problems[0].report->wanted.expected ? 1 : 0);
}

// One product makes the estimate of the edges wrong by any factor, or tells nothing at all.
TEST_P(CapRunsTest, FarGuessesTakeFewRuns) {
  const int n = 48;
  Shape shape;
  shape.lengths = {n};
  shape.heads = 1;
  shape.rank = 16;
  for (const Law law : kLaws) {
    for (const float product : {1e4f, 1e12f, 1e30f, -1e12f, -1e30f, INFINITY, NAN}) {
      SCOPED_TRACE(product);
      Case made(shape);
      for (int i = 0; i < n; ++i) made.x[i * 16 + 1] = made.y[i * 16 + 1] = 0.0f;
      made.x[1] = product;
      made.y[1] = 1.0f;
      made.query_bound[0] = std::isnan(product) ? INFINITY : std::abs(product) + 2.0f;
      made.key_bound[0] += 2.0f;
      made.AddProblems(DrawnRows{.law = law}, 0);
      made.AskForAll();
      const uint64_t edges = EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0);
      for (const uint64_t cap : {uint64_t{1}, edges / 2, edges - 1}) {
        const int runs = CountRuns(*backend_, made, cap);
        EXPECT_LE(runs, cpu_attention::CapSearch::kMostRuns);
        EXPECT_GE(runs, 1);
        ExpectReference(made, {EdgeCap{cap}});
      }
    }
  }
}

TEST_P(CapRunsTest, GuessesAreMostlyRight) {
  int searches = 0, runs = 0;
  for (const Law law : kLaws) {
    for (const double rate : {0.1, 0.6}) {
      for (uint32_t seed = 0; seed < 15; ++seed) {
        Shape shape;
        shape.lengths = {48};
        shape.heads = 1;
        shape.mean_rate = rate;
        shape.seed = seed;
        Case made(shape);
        made.AddProblems(DrawnRows{.law = law, .key = {seed}}, 0);
        const uint64_t edges = EdgesUnder(made, RunReference(made, {EdgeCap{}}), 0);
        for (const uint64_t cap : {edges / 4, edges / 2, edges * 9 / 10}) {
          ++searches;
          runs += CountRuns(*backend_, made, cap);
        }
      }
    }
  }
  EXPECT_GE(runs, searches);
  EXPECT_LE(runs, searches + searches / 10);
}

TEST_P(CapRunsTest, NothingIsSearchedUnderACapOfAllPairs) {
  const int n = 48;
  Shape shape;
  shape.lengths = {n};
  shape.heads = 1;
  shape.mean_rate = 2.0;
  shape.spread = 0.0;
  Case made(shape);  // all pairs are edges
  made.AddProblems(DrawnRows{.self_loops = true}, 0);
  ASSERT_EQ(EdgesUnder(made, Run(made, {EdgeCap{}}), 0), n * n);
  EXPECT_EQ(CountRuns(*backend_, made, n * n), 0);
  EXPECT_GE(CountRuns(*backend_, made, n * n - 1), 1);
  EXPECT_EQ(EdgesUnder(made, Run(made, {EdgeCap{n * n - 1}}), 0), n * n - 1);
}

// Nothing is known of the number of edges then, and nearly all pairs are edges.
TEST_P(CapRunsTest, NaNTakesNoMoreMemoryThanTheCapAllows) {
  uint64_t bytes[2] = {};
  for (const bool bad : {false, true}) {
    Shape shape;
    shape.lengths = {1000};
    shape.heads = 1;
    shape.mean_rate = 2.0;
    Case made(shape);
    if (bad) made.x[0] = NAN;
    if (bad) made.query_bound[0] = INFINITY;
    made.AddProblems(DrawnRows{}, 0);
    const auto backend = Make(1);
    ASSERT_TRUE(backend.ok());
    const uint64_t before = (*backend)->WorkingBytes();
    EXPECT_EQ(EdgesUnder(made, RunOn(**backend, made, {EdgeCap{100}}), 0), 100);
    bytes[bad ? 1 : 0] = (*backend)->WorkingBytes() - before;
  }
  EXPECT_LT(bytes[1], bytes[0] + (uint64_t{8} << 20));
}

}  // namespace
}  // namespace edgewise
