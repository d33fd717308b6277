// The tile kernel on the emulator against the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/attention_kernels.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/attention_patterns.h"

namespace edgewise::cuda {
namespace {

using ::edgewise::testing::Case;
using ::edgewise::testing::Shape;

// A call of the kernel by hand. `cuts`: queries of the items, in turn; `reversed`: the items from the last to the
// first.
class TilesCall {
 public:
  TilesCall(const Case& from, bool bf16, std::vector<int> cuts = {kTileQueries}, bool reversed = false)
      : cuts_(std::move(cuts)) {
    const AttentionInputs& inputs = from.inputs;
    call_.q = inputs.q.data;
    call_.k = inputs.k.data;
    call_.v = inputs.v.data;
    call_.q_stride = inputs.q.stride;
    call_.k_stride = inputs.k.stride;
    call_.v_stride = inputs.v.stride;
    if (bf16) {
      k16_ = Rounded(inputs.k);
      v16_ = Rounded(inputs.v);
      call_.k16 = k16_.data();
      call_.v16 = v16_.data();
    }
    call_.num_heads = inputs.num_heads;
    call_.head_dim = inputs.head_dim;
    call_.value_dim = inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim;
    call_.scale = inputs.scale;
    call_.distance_bias = inputs.distance_bias;
    call_.distance_span = inputs.distance_span;
    for (const AttentionProblem& problem : from.problems) AddProblem(problem);
    if (reversed) std::reverse(items_.begin(), items_.end());
    call_.problems = problems_.data();
    call_.tile_items = items_.data();
    call_.num_tile_items = static_cast<int64_t>(items_.size());
    call_.out_stride = inputs.v.columns;
    out_.assign(static_cast<size_t>(from.out_rows * call_.out_stride), 7.0f);
  }

  std::vector<float> Run() {
    call_.out = out_.data();
    EXPECT_EQ(AttendTiles(nullptr, call_), cudaSuccess);
    return out_;
  }

 private:
  static std::vector<__nv_bfloat16> Rounded(const ConstMatrix& rows) {
    std::vector<__nv_bfloat16> rounded;
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = 0; c < rows.columns; ++c) rounded.push_back(__float2bfloat16_rn(rows.row(r)[c]));
    }
    return rounded;
  }

  void AddProblem(const AttentionProblem& problem) {
    DeviceProblem staged = {};
    staged.first_row = problem.first_row;
    staged.query_row = problem.first_row + problem.query_shift;
    staged.out_row = problem.out_row;
    staged.tokens = problem.tokens;
    staged.first_query = problem.first_query;
    staged.positions = problem.positions;
    staged.kind = PatternKind::kTiles;
    staged.cap = -1;
    if (problem.bias != nullptr) {
      staged.bias_length = problem.bias->length;
      staged.bias_values = problem.bias->values;
      staged.bias_buckets = problem.bias->buckets;
      staged.bias_table = problem.bias->table;
    }
    const auto index = static_cast<int32_t>(problems_.size());
    problems_.push_back(staged);
    if (const auto* all = std::get_if<AllPairs>(&problem.pattern)) {
      Cut(problem.first_query, problem.tokens, [&](int32_t first, int32_t queries) {
        return TileItem{index, 0, first, queries, all->causal ? first + queries : problem.tokens, all->causal ? 1 : 0};
      });
      return;
    }
    const auto& groups = std::get<GroupedKeys>(problem.pattern);
    for (size_t g = 0; g + 1 < groups.group_begin.size(); ++g) {
      const int32_t* const keys = groups.keys.data() + groups.key_offsets[g];
      const auto count = static_cast<int32_t>(groups.key_offsets[g + 1] - groups.key_offsets[g]);
      Cut(groups.group_begin[g], groups.group_begin[g + 1], [&](int32_t first, int32_t queries) {
        TileItem item = {index, 0, first, queries, count, 0, keys, nullptr};
        if (!groups.causal) return item;
        limits_.push_back(std::make_unique<std::vector<int32_t>>());
        for (int32_t i = first; i < first + queries; ++i) {
          limits_.back()->push_back(static_cast<int32_t>(std::upper_bound(keys, keys + count, i) - keys));
        }
        item.limits = limits_.back()->data();
        item.num_keys = limits_.back()->back();
        return item;
      });
    }
  }

  template <typename MakeItem>
  void Cut(int32_t begin, int32_t end, const MakeItem& make_item) {
    for (size_t turn = 0; begin < end; ++turn) {
      const int32_t queries = std::min<int32_t>(end - begin, cuts_[turn % cuts_.size()]);
      TileItem item = make_item(begin, queries);
      for (item.head = 0; item.head < call_.num_heads; ++item.head) items_.push_back(item);
      begin += queries;
    }
  }

  const std::vector<int> cuts_;
  DeviceCall call_ = {};
  std::vector<__nv_bfloat16> k16_, v16_;
  std::vector<DeviceProblem> problems_;
  std::vector<TileItem> items_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> limits_;
  std::vector<float> out_;
};

class AttentionTilesTest : public ::testing::TestWithParam<bool> {
 protected:
  void TearDown() override { emulator::SetOrder(emulator::kForward); }

  std::vector<float> Run(const Case& from) { return TilesCall(from, GetParam()).Run(); }

  void ExpectReference(const Case& from) {
    const std::vector<float> expected = testing::RunReference(from).out, out = Run(from);
    double largest = 0.0;
    for (const float value : expected) largest = std::max<double>(largest, std::abs(value));
    EXPECT_LE(testing::LargestDifference(out, expected), GetParam() ? 2e-2 * largest : 1e-4);
  }
};

INSTANTIATE_TEST_SUITE_P(Precisions, AttentionTilesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Bf16" : "Fp32"; });

TEST_P(AttentionTilesTest, EveryPatternMatchesTheReference) {
  for (const testing::Pattern& pattern : testing::Patterns()) {
    SCOPED_TRACE(pattern.name);
    Shape shape;
    shape.lengths = {1, 3, 63, 64, 65, 130};
    shape.heads = 1;
    ExpectReference(*testing::MakeCase(shape, pattern));
  }
}

TEST_P(AttentionTilesTest, EveryDimensionMatchesTheReference) {
  for (const auto& [head_dim, value_dim] : {std::pair{5, 5},
                                            {56, 56},
                                            {16, 1},
                                            {33, 33},
                                            {32, 48},
                                            {64, 64},
                                            {8, 96},
                                            {128, 128},
                                            {96, 40},
                                            {256, 256},
                                            {64, 200},
                                            {1, 2}}) {
    for (const bool one_matrix : {false, true}) {
      SCOPED_TRACE(std::to_string(head_dim) + " " + std::to_string(value_dim));
      Shape shape;
      shape.lengths = {70, 5};
      shape.head_dim = head_dim;
      shape.value_dim = value_dim;
      shape.one_matrix = one_matrix;
      Case made(shape);
      made.AddProblems(AllPairs{one_matrix});
      ExpectReference(made);
    }
  }
}

TEST_P(AttentionTilesTest, BiasesMatchTheReferenceByPosition) {
  for (const testing::BiasKind kind : testing::kBiasKinds) {
    for (const char* name : {"all", "causal", "uneven", "blocks-100-causal"}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + name);
      Shape shape;
      shape.lengths = {90, 17};
      shape.gap_share = 0.3;
      for (const testing::Pattern& pattern : testing::Patterns()) {
        if (pattern.name != name) continue;
        const auto made = testing::MakeCase(shape, pattern);
        const testing::Biases biases(kind, *made);
        ExpectReference(*made);
      }
    }
  }
}

// As a generation asks: queries are the last tokens, whose rows of q do not stand where their keys do.
TEST_P(AttentionTilesTest, QueriesFromTheMiddleMatchTheReference) {
  for (const bool causal : {false, true}) {
    for (const int first_query : {1, 64, 99}) {
      Shape shape;
      shape.lengths = {100, 100};
      Case made(shape);
      made.AddProblems(AllPairs{causal});
      for (AttentionProblem& problem : made.problems) {
        problem.first_query = first_query;
        problem.query_shift = -first_query;
      }
      made.problems[1].out_row = 100 - first_query;
      made.out_rows = 2 * (100 - first_query);
      ExpectReference(made);
    }
  }
}

// The same query in other company and at another place of its item.
TEST_P(AttentionTilesTest, ResultsDoNotDependOnHowQueriesAreCut) {
  for (const char* name : {"all", "causal", "uneven", "late", "windows-3-causal", "blocks-100"}) {
    SCOPED_TRACE(name);
    for (const testing::Pattern& pattern : testing::Patterns()) {
      if (pattern.name != name) continue;
      Shape shape;
      shape.lengths = {150};
      shape.value_dim = 24;
      const auto made = testing::MakeCase(shape, pattern);
      const testing::Biases biases(testing::BiasKind::kDistance, *made);
      const std::vector<float> whole = Run(*made);
      for (const std::vector<int>& cuts : {std::vector<int>{1}, {7, 30, 2, 64, 16}}) {
        EXPECT_TRUE(testing::SameBytes(whole, TilesCall(*made, GetParam(), cuts, true).Run()));
      }
    }
  }
}

TEST_P(AttentionTilesTest, ResultsDoNotDependOnTheOrderOfThreads) {
  for (const int head_dim : {16, 72}) {
    Shape shape;
    shape.lengths = {140, 30};
    shape.head_dim = head_dim;
    Case made(shape);
    made.AddProblems(AllPairs{true});
    made.problems[1].pattern = testing::Windows(30, 2, true);
    const std::vector<float> forward = Run(made);
    for (const emulator::Order order : {emulator::kBackward, emulator::Shuffled(1), emulator::Shuffled(2)}) {
      emulator::SetOrder(order);
      EXPECT_TRUE(testing::SameBytes(forward, Run(made)));
    }
    emulator::SetOrder(emulator::kForward);
  }
}

// Row 0 sees nothing, row 1 a score beyond float32, row 2 scores of -infinity alone, row 3 one of those among others.
TEST_P(AttentionTilesTest, RowsWithoutKeysGiveZerosAndInfiniteScoresNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kTokens = 130;
  Shape shape;
  shape.lengths = {kTokens};
  shape.heads = 1;
  Case made(shape);
  GroupedKeys groups;
  groups.group_begin = {0, 1, kTokens};
  for (int32_t key = 0; key < kTokens; ++key) groups.keys.push_back(key);
  groups.key_offsets = {0, 0, kTokens};
  made.AddProblems(groups);
  std::vector<float> values(kTokens * kTokens, 0.0f);
  values[kTokens + 100] = kInfinity;
  std::fill_n(values.begin() + 2 * kTokens, kTokens, -kInfinity);
  std::fill_n(values.begin() + 3 * kTokens, 70, -kInfinity);
  const PairwiseBias bias = {kTokens, values.data()};
  made.problems[0].bias = &bias;
  const std::vector<float> out = Run(made);
  const auto row = [&](int r) { return std::span(out).subspan(r * shape.head_dim, shape.head_dim); };
  for (const float value : row(0)) EXPECT_EQ(value, 0.0f);
  for (const float value : row(1)) EXPECT_TRUE(std::isnan(value));
  for (const float value : row(2)) EXPECT_TRUE(std::isnan(value));
  for (const float value : row(3)) EXPECT_TRUE(std::isfinite(value));

  std::fill_n(values.begin() + 3 * kTokens, 70, -1e30f);
  const std::vector<float> again = Run(made);
  EXPECT_TRUE(testing::SameBytes(row(3), std::span(again).subspan(3 * shape.head_dim, shape.head_dim)));
}

TEST_P(AttentionTilesTest, RefusesDimensionsBeyond256) {
  DeviceCall call = {};
  call.head_dim = 257;
  call.value_dim = 16;
  call.num_tile_items = 1;
  EXPECT_EQ(AttendTiles(nullptr, call), cudaErrorInvalidValue);
  call.num_tile_items = 0;
  EXPECT_EQ(AttendTiles(nullptr, call), cudaSuccess);
}

}  // namespace
}  // namespace edgewise::cuda
