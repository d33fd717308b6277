// Rows of attention against float64.
#ifndef EDGEWISE_BENCH_ROW_ERRORS_H_
#define EDGEWISE_BENCH_ROW_ERRORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace edgewise::bench {

struct RowErrors {
  double largest_difference = 0.0;  // NaN counts as infinite
  double largest_value = 0.0;
};

// Compares head `head` of row `row` of `out` with attention over `keys`.
void CompareRow(const AttentionInputs& inputs, int head, int64_t row, std::span<const int32_t> keys, ConstMatrix out,
                RowErrors& errors);

// 0, 1, ... up to but without n.
std::vector<int32_t> AllKeys(int64_t n);

// The keys that each of some rows draws by the definition, without any that are forced. x, y: the memberships of n
// tokens, `rank` each.
std::vector<std::vector<int32_t>> DrawnKeys(const DrawnRows& drawn, uint32_t head, std::span<const int64_t> rows,
                                            const float* x, const float* y, int64_t n, int32_t rank);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_ROW_ERRORS_H_
