#include "model/checkpoint/weight_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace edgewise {

std::vector<float> SinusoidalPositions(int64_t positions, int64_t hidden) {
  std::vector<float> table(positions * hidden);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < hidden; ++c) {
      const double exponent = static_cast<double>(c - c % 2) / static_cast<double>(hidden);
      const double angle = static_cast<double>(p) / std::pow(10000.0, exponent);
      table[p * hidden + c] = static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

std::vector<float> AlibiBias(int64_t heads, int64_t positions) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<float> table;
  table.reserve(heads * (2 * positions - 1));
  for (int64_t head = 0; head < heads; ++head) {
    const double exponent = head < power
                                ? 8.0 * static_cast<double>(head + 1) / static_cast<double>(power)
                                : 4.0 * static_cast<double>(2 * (head - power) + 1) / static_cast<double>(power);
    const double slope = std::exp2(-exponent);
    for (int64_t distance = 1 - positions; distance < positions; ++distance) {
      table.push_back(static_cast<float>(-slope * static_cast<double>(std::abs(distance))));
    }
  }
  return table;
}

std::vector<float> PairwiseTable(std::span<const float> values, int64_t heads, int64_t buckets) {
  std::vector<float> table(heads * 256, 0.0f);
  for (int64_t head = 0; head < heads; ++head) {
    std::copy_n(values.begin() + head * buckets, buckets, table.begin() + head * 256);
  }
  return table;
}

}  // namespace edgewise
