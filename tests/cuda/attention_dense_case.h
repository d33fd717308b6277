// A case of attention with the items that the backend makes of its rows, dense heads among them.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_DENSE_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_DENSE_CASE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/attention/kernels.h"
#include "tests/cuda/attention_rows_case.h"

namespace edgewise::cuda::testing {

struct DenseCase : DeviceCase {
  DenseCase(const edgewise::testing::Case& from, bool bf16, std::vector<DeviceCap> caps = {})
      : DeviceCase(from, std::move(caps)) {
    if (bf16) RoundOperands(from, *this);
    for (size_t p = 0; p < problems.size(); ++p) {
      AddRowItems(from.problems[p], static_cast<int32_t>(p), call.num_heads, problems[p], items);
    }
    call.problems = memory.Put(problems);
    const auto put = [&](const std::vector<RowItem>& list, const RowItem*& to, int64_t& count) {
      to = memory.Put(list);
      count = static_cast<int64_t>(list.size());
    };
    put(items.rows, call.row_items, call.num_row_items);
    put(items.dense, call.dense_items, call.num_dense_items);
    put(items.sampled, call.sampled_items, call.num_sampled_items);
    call.sampled_edges = memory.Put(std::vector<unsigned long long>(static_cast<size_t>(items.sampled_heads)));
  }

  std::vector<float> Attend(const edgewise::testing::Case& from) {
    if (call.num_caps > 0) Select(*this);
    EXPECT_EQ(CountSampledEdges(nullptr, call), cudaSuccess);
    EXPECT_EQ(AttendRows(nullptr, call), cudaSuccess);
    EXPECT_EQ(AttendTiles(nullptr, call), cudaSuccess);
    return Get(call.out, from.out_rows * call.out_stride);
  }

  // Of drawn problems, once that is known.
  bool IsDense(size_t problem, int head) const {
    const int64_t index = problems[problem].sampled + head;
    const int32_t tokens = problems[problem].tokens;
    return cuda::HeadIsDense(tokens, tokens, Get(call.sampled_edges, items.sampled_heads)[static_cast<size_t>(index)]);
  }

  RowItems items;
};

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_DENSE_CASE_H_
