// Graphs that are given back take the way that they took when they were drawn: the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/cuda/attention_dense_case.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::SameBytes;
using ::edgewise::testing::Shape;
using testing::DenseCase;
using testing::Drawn;

std::vector<std::vector<HeadEdges>> GraphsOfReference(const Case& from) {
  std::vector<std::vector<HeadEdges>> graphs(from.problems.size());
  for (size_t p = 0; p < graphs.size(); ++p) {
    for (int h = 0; h < from.inputs.num_heads; ++h) {
      HeadEdges& head = graphs[p].emplace_back();
      head.row_offsets.assign(static_cast<size_t>(from.problems[p].tokens) + 1, 0);
      for (const reference::Edge& edge : reference::DrawEdges(from.inputs, from.problems[p], h)) {
        head.keys.push_back(edge.key);
        head.row_offsets[edge.query + 1] = static_cast<int64_t>(head.keys.size());
      }
      for (size_t i = 1; i < head.row_offsets.size(); ++i) {
        head.row_offsets[i] = std::max(head.row_offsets[i], head.row_offsets[i - 1]);
      }
    }
  }
  return graphs;
}

// Head by head.
TEST(AttentionDenseGivenTest, AGivenGraphHasTheBytesOfTheDrawnOne) {
  for (const auto& [rate, bf16] : {std::pair(0.03, true), {0.06, false}, {0.06, true}, {0.5, false}, {0.5, true}}) {
    Shape shape;
    shape.lengths = {150, 33, 64};
    shape.heads = 3;
    shape.mean_rate = rate;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    const std::vector<float> want = DenseCase(made, bf16).Attend(made);
    const auto graphs = GraphsOfReference(made);
    for (size_t p = 0; p < graphs.size(); ++p) {
      ExplicitEdges given;
      given.heads = &graphs[p];
      made.problems[p].pattern = given;
    }
    DenseCase device(made, bf16);
    EXPECT_EQ(device.call.state, nullptr);
    EXPECT_TRUE(SameBytes(device.Attend(made), want)) << rate;
    if (rate == 0.5) {
      EXPECT_EQ(device.call.num_row_items, 0);
    }
  }
}

TEST(AttentionDenseGivenTest, AGivenGraphHasTheBytesOfTheDrawnOneWhateverItsShape) {
  struct Shaped {
    Law law;
    bool self_loops;
    double gaps;
    int value_dim;
    uint64_t most;  // under a cap
  };
  const Shaped shapes[] = {{Law::kPoissonSet, false, 0.0, 16, 0},   {Law::kBernoulli, true, 0.0, 136, 0},
                           {Law::kBernoulli, false, 0.0, 128, 0},   {Law::kBernoulli, false, 0.2, 16, 0},
                           {Law::kBernoulli, false, 0.0, 16, 2000}, {Law::kBernoulli, true, 0.0, 16, 300}};
  for (int i = 0; i < 2 * static_cast<int>(std::size(shapes)); ++i) {
    const Shaped& of = shapes[i / 2];
    const bool bf16 = i % 2 == 1;
    Shape shape;
    shape.lengths = {1, 20, 31, 32, 100};
    shape.value_dim = of.value_dim;
    shape.mean_rate = 0.3;
    shape.gap_share = of.gaps;
    Case made(shape);
    DrawnRows drawn = Drawn(of.law);
    drawn.self_loops = of.self_loops;
    made.AddProblems(drawn, of.most > 0 ? 0 : -1);
    std::vector<DeviceCap> caps;
    if (of.most > 0) caps.push_back(testing::CapOf(of.most));
    DenseCase first(made, bf16, caps);
    const std::vector<float> want = first.Attend(made);
    if (of.most == 0) {
      EXPECT_TRUE(first.IsDense(made.problems.size() - 1, 0));
    }
    std::vector<std::vector<HeadEdges>> graphs(made.problems.size());
    for (size_t p = 0; p < graphs.size(); ++p) {
      const testing::Listed listed = testing::List(first, static_cast<int32_t>(p));
      const auto rows = static_cast<size_t>(made.problems[p].tokens) + 1;
      for (size_t h = 0; h < 2; ++h) {
        HeadEdges& head = graphs[p].emplace_back();
        const auto from = listed.row_offsets.begin() + static_cast<int64_t>(h * rows);
        for (size_t i = 0; i < rows; ++i) head.row_offsets.push_back(from[static_cast<int64_t>(i)] - from[0]);
        head.keys.assign(listed.keys.begin() + from[0], listed.keys.begin() + from[0] + head.row_offsets.back());
      }
      made.problems[p].pattern = ExplicitEdges{.heads = &graphs[p]};
      made.problems[p].cap = -1;
    }
    EXPECT_TRUE(SameBytes(DenseCase(made, bf16).Attend(made), want))
        << of.value_dim << " " << of.most << " " << of.gaps;
  }
}

// The last queries of a sequence: the bytes that they have among all.
TEST(AttentionDenseGivenTest, LaterQueriesOfADenseGraphHaveTheirBytes) {
  for (const bool bf16 : {false, true}) {
    Shape shape;
    shape.lengths = {150};
    shape.mean_rate = 0.5;
    Case made(shape);
    made.AddProblems(Drawn(Law::kBernoulli));
    auto graphs = GraphsOfReference(made);
    made.problems[0].pattern = ExplicitEdges{.heads = graphs.data()};
    const std::vector<float> want = DenseCase(made, bf16).Attend(made);
    for (HeadEdges& head : graphs[0]) {
      const int64_t first = head.row_offsets[100];
      head.keys.erase(head.keys.begin(), head.keys.begin() + first);
      head.row_offsets.erase(head.row_offsets.begin(), head.row_offsets.begin() + 100);
      for (int64_t& offset : head.row_offsets) offset -= first;
    }
    made.problems[0].first_query = 100;
    made.out_rows = 50;
    DenseCase device(made, bf16);
    EXPECT_EQ(device.call.num_row_items, 0);
    const std::vector<float> last = device.Attend(made);
    EXPECT_TRUE(SameBytes(last, std::span(want).last(last.size())));
  }
}

}  // namespace
}  // namespace edgewise::cuda
