// Keys and values in pages: the bytes and the reports of the same rows in one matrix.
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/paged_case.h"

namespace edgewise {
namespace {

using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::GraphsOf;
using testing::MakeCase;
using testing::Outcome;
using testing::Paged;
using testing::Pattern;
using testing::Patterns;
using testing::SameBytes;
using testing::Shape;

class PagesTest : public testing::DeviceTest {
 protected:
  void ExpectTheBytesOfOneMatrix(Case& made) {
    const Outcome whole = Run(made);
    Paged paged(*backend_, made);
    paged.Give(made);
    const Outcome got = Run(made);
    EXPECT_TRUE(SameBytes(got.out, whole.out));
    ExpectSameReports(got, whole, 0.0, 0.0);
  }
};
EDGEWISE_TEST_ON(Devices, PagesTest);
class CpuPagesTest : public PagesTest {};
EDGEWISE_TEST_ON(Cpus, CpuPagesTest);

TEST_P(CpuPagesTest, EveryPatternHasTheBytesOfOneMatrix) {
  for (const Pattern& pattern : Patterns()) {
    for (const int head_dim : {16, 20, 64}) {  // rows of a page are read in place; copied; in place
      for (const bool graph : {false, true}) {
        SCOPED_TRACE(pattern.name + " " + std::to_string(head_dim) + (graph ? " with a graph" : ""));
        Shape shape;
        shape.lengths = {1, 63, 64, 65, 300};
        shape.head_dim = head_dim;
        shape.gap_share = head_dim == 16 ? 0.2 : 0.0;
        shape.one_matrix = graph;
        const auto made = MakeCase(shape, pattern);
        for (const auto& report : made->reports) report->wanted.graph = graph;
        const Biases biases(head_dim == 20 ? BiasKind::kDistanceAndBuckets : BiasKind::kNone, *made);
        ExpectTheBytesOfOneMatrix(*made);
      }
    }
  }
}

// As a token is decoded: one query, or the few of a short part.
TEST_P(PagesTest, TheLastRowsHaveTheBytesOfOneMatrix) {
  std::mt19937 random(7);
  for (const int queries : {1, 3, 70}) {
    for (const int head_dim : {24, 64}) {
      for (const int every : {0, 1, 2, 9, -100}) {  // keys of the list: null, all, half, few; a window of two pages
        SCOPED_TRACE(std::to_string(queries) + " " + std::to_string(head_dim) + " " + std::to_string(every));
        Shape shape;
        shape.lengths = {200, 97, 128, 300};  // the last in parts where it is decoded
        shape.heads = 4;
        shape.key_value_heads = every == -100 || every == 1 ? 2 : 0;
        shape.head_dim = head_dim;
        Case made(shape);
        made.inputs.phase = queries < 70 ? Phase::kDecode : Phase::kPrefill;
        made.inputs.runs_as_windows = every < 0;
        made.AddProblems(AllPairs{true, every < 0 ? -every : AllPairs::kFar});
        made.out_rows = 0;
        for (AttentionProblem& problem : made.problems) {
          problem.first_query = problem.tokens - queries;
          problem.out_row = made.out_rows;
          made.out_rows += queries;
          if (every <= 0) continue;
          GroupedKeys& keys = problem.pattern.emplace<GroupedKeys>();
          for (int32_t key = 0; key < problem.tokens; key += 1 + static_cast<int32_t>(random() % every)) {
            keys.keys.push_back(key);
          }
          keys.group_begin = {problem.first_query, problem.tokens};
          keys.key_offsets = {0, static_cast<int64_t>(keys.keys.size())};
          keys.causal = true;
        }
        ExpectTheBytesOfOneMatrix(made);
      }
    }
  }
}

TEST_P(CpuPagesTest, GivenEdgesHaveTheBytesOfOneMatrix) {
  for (const double rate : {0.05, 0.6}) {  // gathered edge by edge; by tiles
    Shape shape;
    shape.lengths = {150, 40};
    shape.mean_rate = rate;
    Case made(shape);
    made.AddProblems(DrawnRows{});
    made.AskForAll();
    const auto graphs = GraphsOf(Run(made));
    for (size_t p = 0; p < graphs.size(); ++p) made.problems[p].pattern = ExplicitEdges{&graphs[p]};
    ExpectTheBytesOfOneMatrix(made);
  }
}

class GpuPagesTest : public PagesTest {};
EDGEWISE_TEST_ON(Gpus, GpuPagesTest);

TEST_P(GpuPagesTest, GraphsAndRowsOfTheirOwnAreRefused) {
  Case made(Shape{});
  made.AddProblems(AllPairs{true});
  Paged(*backend_, made).Give(made);
  const testing::PlacedCase placed(*backend_, made);
  const auto code = [&] { return backend_->Attend(placed.inputs, made.problems, {}, placed.Out()).code(); };
  made.problems[0].report->wanted.graph = true;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  made.problems[0].report->wanted.graph = false;
  made.problems[0].pattern = DrawnRows{};
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace edgewise
