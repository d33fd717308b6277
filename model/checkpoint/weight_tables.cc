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

std::vector<float> BucketBias(std::span<const float> values, int64_t heads, int64_t positions) {
  constexpr int64_t kHalf = kDistanceBuckets / 2, kExact = kHalf / 2;
  const auto bucket = [](int64_t distance) {  // of a key that comes not after its query
    if (distance < kExact) return distance;
    // In float32, as the trained models' own code: a distance at a boundary must not fall on the other side.
    const float octaves = std::log(static_cast<float>(distance) / kExact) / std::log(128.0f / kExact);
    return std::min(kHalf - 1, kExact + static_cast<int64_t>(octaves * (kHalf - kExact)));
  };
  std::vector<float> table;
  table.reserve(heads * (2 * positions - 1));
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t distance = 1 - positions; distance < positions; ++distance) {
      table.push_back(values[(bucket(std::abs(distance)) + (distance > 0 ? kHalf : 0)) * heads + head]);
    }
  }
  return table;
}

std::vector<float> RotaryTable(std::span<const double> angles, double factor, int64_t positions) {
  std::vector<float> table;
  table.reserve(2 * angles.size() * positions);
  for (int64_t position = 0; position < positions; ++position) {
    const auto place = static_cast<double>(position);
    for (const double angle : angles) table.push_back(static_cast<float>(factor * std::cos(place * angle)));
    for (const double angle : angles) table.push_back(static_cast<float>(factor * std::sin(place * angle)));
  }
  return table;
}

std::vector<float> TypedPositions(std::span<const float> positions, std::span<const float> types, int64_t hidden) {
  std::vector<float> table;
  table.reserve(positions.size() * types.size() / hidden);
  for (size_t type = 0; type < types.size(); type += hidden) {
    for (size_t i = 0; i < positions.size(); ++i) table.push_back(positions[i] + types[type + i % hidden]);
  }
  return table;
}

std::vector<float> PatchPositions(std::span<const float> positions, std::span<const float> cls,
                                  std::span<const float> bias) {
  const size_t hidden = cls.size();
  std::vector<float> table;
  table.reserve(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    table.push_back(positions[i] + (i < hidden ? cls[i] : bias[i % hidden]));
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
