// Expected edges: those of the definition, whatever rows share a pass over the keys, and in parts of their own.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cancel_flag.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/kernels.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::Outcome;
using testing::RunOn;
using testing::Shape;

class ExpectedTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Devices, ExpectedTest);

class CpuExpectedTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, CpuExpectedTest);

// Rates that are cut to 1, rows on both sides of a part's 96, keys of several words, forced edges.
TEST_P(ExpectedTest, AreThoseOfTheDefinition) {
  const std::vector<int> lengths = {97, Sized(300, 70)};
  for (const Law law : {Law::kBernoulli, Law::kPoissonMulti}) {
    for (const double gaps : {0.0, 0.5}) {
      for (const auto& [rate, exploration] : {std::pair{0.004, 0.02f}, {0.7, 0.0f}}) {
        for (const int window : {-1, 0, 150}) {
          SCOPED_TRACE(std::to_string(static_cast<int>(law)) + " " + std::to_string(gaps) + " " + std::to_string(rate) +
                       " " + std::to_string(window));
          Shape shape;
          shape.lengths = lengths;
          shape.heads = 1;
          shape.mean_rate = rate;
          shape.gap_share = gaps;
          Case made(shape);
          made.AddProblems(DrawnRows{
              .law = law, .exploration = exploration, .self_loops = window >= 0, .local_window = std::max(window, 0)});
          for (const auto& report : made.reports) report->wanted.expected = true;
          ExpectReference(made);
        }
      }
    }
  }
}

// Of every number of rows and of keys around the sizes of tiles.
TEST_P(CpuExpectedTest, ARowHasTheSameBytesBesideAnyOthers) {
  const CpuKernels& kernels = KernelsFor(*SelectIsa(GetParam().options.isa));
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform;
  for (const int rank : {16, 48, 528}) {
    for (const int64_t words : {2, 8, 10}) {
      std::vector<float> x(23 * static_cast<size_t>(rank)), y(static_cast<size_t>(words * 64 * rank));
      for (float& value : x) value = uniform(random);
      for (float& value : y) value = uniform(random) / static_cast<float>(rank);
      std::vector<uint64_t> valid(words, ~uint64_t{0});
      valid[words - 1] = 0x8000'7000'0600'0501;
      DrawTables tables;
      tables.words = words;
      tables.valid = valid.data();
      tables.y_tiles = y.data();
      tables.rank = rank;
      for (const bool poisson : {false, true}) {
        std::vector<double> alone(23), together(23);
        for (int r = 0; r < 23; ++r) kernels.expected_rows(tables, x.data() + r * rank, 1, poisson, &alone[r]);
        for (const int count : {2, 5, 6, 7, 12, 23}) {
          kernels.expected_rows(tables, x.data(), count, poisson, together.data());
          for (int r = 0; r < count; ++r) ASSERT_EQ(together[r], alone[r]) << rank << " " << words << " " << count;
        }
      }
    }
  }
}

TEST_P(CpuExpectedTest, PartsAndThreadsChangeNoByte) {
  Shape shape;
  shape.lengths = {500, 97};
  Case made(shape);
  made.AddProblems(DrawnRows{.law = Law::kPoissonSet, .local_window = 4});
  for (const auto& report : made.reports) report->wanted.expected = true;
  const Outcome whole = Run(made);
  for (const int threads : {1, 3}) {
    const auto backend = *Make(threads);
    for (const double share : {0.01, 0.3, 1.0}) {
      ExpectSameReports(RunOn(*backend, made, {}, share), whole, 0.0, 0.0);
    }
  }
}

// Ten parts count, of 96 rows each, after those that attend.
TEST_P(CpuExpectedTest, ARaisedFlagEndsTheCountBetweenItsParts) {
  Shape shape;
  shape.lengths = {960};
  shape.heads = 1;
  Case made(shape);
  made.AddProblems(DrawnRows{});
  const testing::PlacedCase placed(*backend_, made);
  const auto run = [&](bool expected, int raised_before, CancelFlag* flag) {
    made.reports[0]->wanted.expected = expected;
    made.problems[0].cancel = flag;
    const auto parts = *backend_->AttendInParts(placed.inputs, made.problems, {}, placed.Out());
    int count = 0;
    for (bool done = false; !done; ++count) {
      if (count == raised_before) flag->Cancel();
      done = *parts->Next(0.1);
    }
    return count;
  };
  const int attending = run(false, -1, nullptr);
  ASSERT_EQ(run(true, -1, nullptr), attending + 10);
  const double whole = made.reports[0]->heads[0].expected;
  CancelFlag flag;
  EXPECT_EQ(run(true, attending + 5, &flag), attending + 10);
  EXPECT_NEAR(made.reports[0]->heads[0].expected / whole, 0.5, 0.1);
}

}  // namespace
}  // namespace edgewise
