#include "selfcheck/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace edgewise::selfcheck {

double RelativeError(std::span<const float> got, std::span<const float> want) {
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

bool SameGraph(const AttentionReport& got, const AttentionReport& want) {
  return std::equal(got.heads.begin(), got.heads.end(), want.heads.begin(), want.heads.end(),
                    [](const HeadReport& a, const HeadReport& b) {
                      return a.edges == b.edges && a.isolated == b.isolated &&
                             a.graph.row_offsets == b.graph.row_offsets && a.graph.keys == b.graph.keys &&
                             a.graph.multiplicity == b.graph.multiplicity;
                    });
}

}  // namespace edgewise::selfcheck
