// Attention of some rows in float64, on the host.
#ifndef EDGEWISE_BENCH_GPU_SAMPLED_ROWS_H_
#define EDGEWISE_BENCH_GPU_SAMPLED_ROWS_H_

#include <cstdint>
#include <vector>

#include "kernels/draw.h"

namespace edgewise::bench {

// One head of one sequence, packed rows in host memory.
struct HeadOperands {
  int64_t n = 0;
  int32_t head_dim = 0, rank = 0;
  std::vector<float> q, k, v, out;  // [n, head_dim]
  std::vector<float> x, y;          // [n, rank]
};

struct RowErrors {
  double largest_difference = 0.0;  // NaN counts as infinite
  double largest_value = 0.0;
};

// Compares the output's row i with attention over the keys that `head` draws with `key` by law bernoulli, or over all
// of them without `key`, for eight rows.
void CompareRows(const HeadOperands& operands, float scale, uint32_t head, const RandomKey* key, RowErrors& errors);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_GPU_SAMPLED_ROWS_H_
