// Shared by the tests of drawn rows.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "tests/cuda/device_case.h"

namespace edgewise::cuda::testing {

inline DrawnRows Drawn(Law law, uint64_t seed = 7) { return {.law = law, .key = {.seed = seed, .layer = 3}}; }

// Keys and values rounded as precision bf16 has them.
inline void RoundOperands(const edgewise::testing::Case& from, DeviceCase& device) {
  const auto rounded = [](const ConstMatrix& rows) {
    std::vector<__nv_bfloat16> to;
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = 0; c < rows.columns; ++c) to.push_back(__float2bfloat16_rn(rows.row(r)[c]));
    }
    return to;
  };
  device.call.k16 = device.memory.Put(rounded(from.inputs.k));
  device.call.v16 = device.memory.Put(rounded(from.inputs.v));
  device.call.k16_stride = from.inputs.k.columns;
  device.call.v16_stride = from.inputs.v.columns;
}

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_ROWS_CASE_H_
