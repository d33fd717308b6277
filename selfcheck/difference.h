// The difference between a device's result and the expected one.
#ifndef EDGEWISE_SELFCHECK_DIFFERENCE_H_
#define EDGEWISE_SELFCHECK_DIFFERENCE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/attention.h"

namespace edgewise::selfcheck {

// The largest difference, relative to the largest value of `want` (absolute, where that is zero). NaN, which is below
// no tolerance: a difference is not a number, or there are not as many values.
inline double RelativeError(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::quiet_NaN();
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    if (std::isnan(error)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference = std::max(difference, error);
  }
  return difference / (largest > 0.0 ? largest : 1.0);
}

// The same heads, with the same edges and multiplicities in the same order, and counts that say so.
inline bool SameGraph(const AttentionReport& got, const AttentionReport& want) {
  return std::equal(got.heads.begin(), got.heads.end(), want.heads.begin(), want.heads.end(),
                    [](const HeadReport& a, const HeadReport& b) {
                      return a.edges == b.edges && a.isolated == b.isolated &&
                             a.graph.row_offsets == b.graph.row_offsets && a.graph.keys == b.graph.keys &&
                             a.graph.multiplicity == b.graph.multiplicity;
                    });
}

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_DIFFERENCE_H_
