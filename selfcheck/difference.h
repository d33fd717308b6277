// The difference between a device's result and the expected one.
#ifndef EDGEWISE_SELFCHECK_DIFFERENCE_H_
#define EDGEWISE_SELFCHECK_DIFFERENCE_H_

#include <span>

#include "kernels/attention.h"

namespace edgewise::selfcheck {

// The largest difference, relative to the largest value of `want` (absolute, where that is zero). NaN, which is below
// no tolerance: a difference is not a number, or there are not as many values.
double RelativeError(std::span<const float> got, std::span<const float> want);

// The same heads, with the same edges and multiplicities in the same order, and counts that say so.
bool SameGraph(const AttentionReport& got, const AttentionReport& want);

}  // namespace edgewise::selfcheck

#endif  // EDGEWISE_SELFCHECK_DIFFERENCE_H_
