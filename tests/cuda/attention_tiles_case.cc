#include "tests/cuda/attention_tiles_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/cuda/attention/kernels.h"

namespace edgewise::cuda::testing {
namespace {

std::vector<__nv_bfloat16> Rounded(const ConstMatrix& rows) {
  std::vector<__nv_bfloat16> rounded;
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t c = 0; c < rows.columns; ++c) rounded.push_back(__float2bfloat16_rn(rows.row(r)[c]));
  }
  return rounded;
}

}  // namespace

TilesCall::TilesCall(const edgewise::testing::Case& from, bool bf16, TileCuts cuts) : cuts_(std::move(cuts)) {
  const AttentionInputs& inputs = from.inputs;
  call_.q = inputs.q.data;
  call_.k = inputs.k.data;
  call_.v = inputs.v.data;
  call_.q_stride = inputs.q.stride;
  call_.k_stride = inputs.k.stride;
  call_.v_stride = inputs.v.stride;
  call_.bf16 = bf16;
  if (bf16) {
    k16_ = Rounded(inputs.k);
    v16_ = Rounded(inputs.v);
    call_.k16 = k16_.data();
    call_.v16 = v16_.data();
    call_.k16_stride = inputs.k.columns;
    call_.v16_stride = inputs.v.columns;
    call_.k16_head_stride = inputs.head_dim;
    call_.v16_head_stride = inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim;
  }
  call_.num_heads = inputs.num_heads;
  call_.heads_of_key = inputs.num_heads / inputs.key_value_heads();
  call_.head_dim = inputs.head_dim;
  call_.value_dim = inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim;
  call_.scale = inputs.scale;
  call_.distance_bias = inputs.distance_bias;
  call_.distance_span = inputs.distance_span;
  for (const AttentionProblem& problem : from.problems) AddProblem(problem);
  if (cuts_.reversed) {
    std::reverse(items_.begin(), items_.end());
    std::reverse(narrow_items_.begin(), narrow_items_.end());
  }
  call_.problems = problems_.data();
  call_.tile_items = items_.data();
  call_.num_tile_items = static_cast<int64_t>(items_.size());
  call_.narrow_items = narrow_items_.data();
  call_.num_narrow_items = static_cast<int64_t>(narrow_items_.size());
  call_.out_stride = from.out_columns();
  out_.assign(static_cast<size_t>(from.out_rows * call_.out_stride), kUnwritten);
}

std::vector<float> TilesCall::Run() {
  call_.out = out_.data();
  EXPECT_EQ(AttendTiles(nullptr, call_), cudaSuccess);
  return out_;
}

void TilesCall::AddProblem(const AttentionProblem& problem) {
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
void TilesCall::Cut(int32_t begin, int32_t end, const MakeItem& make_item) {
  for (size_t turn = 0; begin < end; ++turn) {
    const int32_t queries = std::min<int32_t>(end - begin, cuts_.queries[turn % cuts_.queries.size()]);
    TileItem item = make_item(begin, queries);
    auto& items = cuts_.one_warp && queries <= kWarpQueries ? narrow_items_ : items_;
    for (item.head = 0; item.head < call_.num_heads; ++item.head) items.push_back(item);
    begin += queries;
  }
}

}  // namespace edgewise::cuda::testing
