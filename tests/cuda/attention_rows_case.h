// Shared by the tests of drawn rows.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "tests/cuda/device_case.h"

namespace edgewise::cuda::testing {

inline DrawnRows Drawn(Law law, uint64_t seed = 7) { return {.law = law, .key = {.seed = seed, .layer = 3}}; }

// Keys and values rounded as precision bf16 has them: each by itself as a cache has them, or, head by head, the key and
// the value of a token side by side.
inline void RoundOperands(const edgewise::testing::Case& from, DeviceCase& device, bool side_by_side = false) {
  DeviceCall& call = device.call;
  const int64_t rows = from.inputs.k.rows, both = call.head_dim + call.value_dim;
  call.k16_stride = side_by_side ? both : from.inputs.k.columns;
  call.v16_stride = side_by_side ? both : from.inputs.v.columns;
  call.k16_head_stride = side_by_side ? rows * both : call.head_dim;
  call.v16_head_stride = side_by_side ? rows * both : call.value_dim;
  std::vector<__nv_bfloat16> k(static_cast<size_t>(rows * call.num_heads * (side_by_side ? both : call.head_dim)));
  std::vector<__nv_bfloat16> v(static_cast<size_t>(rows * call.num_heads * call.value_dim));
  const auto round = [&](const ConstMatrix& x, int32_t columns, int64_t stride, int64_t head_stride,
                         __nv_bfloat16* to) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < call.num_heads * columns; ++c) {
        to[r * stride + c / columns * head_stride + c % columns] = __float2bfloat16_rn(x.row(r)[c]);
      }
    }
  };
  round(from.inputs.k, call.head_dim, call.k16_stride, call.k16_head_stride, k.data());
  round(from.inputs.v, call.value_dim, call.v16_stride, call.v16_head_stride,
        side_by_side ? k.data() + call.head_dim : v.data());
  call.bf16 = true;
  call.k16 = device.memory.Put(k);
  call.v16 = side_by_side ? call.k16 + call.head_dim : device.memory.Put(v);
}

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
