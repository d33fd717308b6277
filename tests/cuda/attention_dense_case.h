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
  DenseCase(const edgewise::testing::Case& from, bool bf16, std::vector<DeviceCap> caps = {}, bool side_by_side = false)
      : DeviceCase(from, std::move(caps)) {
    if (bf16) RoundOperands(from, *this, side_by_side);
  }

  std::vector<float> Attend(const edgewise::testing::Case& from) {
    if (call.num_caps > 0) Select();
    Keep();
    EXPECT_EQ(AttendRows(nullptr, call), cudaSuccess);
    EXPECT_EQ(AttendTiles(nullptr, call), cudaSuccess);
    return Get(call.out, from.out_rows * call.out_stride);
  }

  // Of drawn problems, once their edges are counted.
  bool IsDense(size_t problem, int head) const {
    const DeviceProblem& of = problems[problem];
    return of.may_be_dense &&
           cuda::HeadIsDense(of.tokens, of.tokens, Counts()[static_cast<size_t>(of.count + head)].edges);
  }
};

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_DENSE_CASE_H_
