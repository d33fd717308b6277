// Numbers in fewer bits, one number at a time: bfloat16, and --weights=int8 by its definition (docs/weights.md).
#ifndef EDGEWISE_TESTS_KERNELS_QUANTIZED_H_
#define EDGEWISE_TESTS_KERNELS_QUANTIZED_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace edgewise::testing {

// To bfloat16.
inline std::vector<float> Rounded(std::vector<float> values) {
  for (float& value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    value = std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
  }
  return values;
}

// To bfloat16, two in the place of a float, the first below.
inline std::vector<float> InBfloat16(const std::vector<float>& values) {
  const std::vector<float> rounded = Rounded(values);
  std::vector<float> pairs;
  for (size_t i = 0; i < rounded.size(); i += 2) {
    pairs.push_back(
        std::bit_cast<float>(std::bit_cast<uint32_t>(rounded[i]) >> 16 | std::bit_cast<uint32_t>(rounded[i + 1])));
  }
  return pairs;
}

// A number is (level - zero) * scale.
struct Quantized {
  std::vector<int> levels;
  float scale = 0.0f;
  int zero = 0;
  float value(size_t i) const { return static_cast<float>(levels[i] - zero) * scale; }
};

// A row of x: 0 to 255, from the least number to the largest, with 0 among them.
inline Quantized QuantizedRow(std::span<const float> x) {
  float low = 0.0f, high = 0.0f;
  for (const float value : x) low = std::min(low, value), high = std::max(high, value);
  Quantized row;
  row.scale = std::max(0x1p-100f, high / 255.0f - low / 255.0f);
  const volatile float per_step = 1.0f / row.scale;  // each product is rounded before anything else is done to it
  const volatile float zero = -low * per_step;
  row.zero = static_cast<int>(std::nearbyint(zero));
  for (const float value : x) {
    const volatile float level = value * per_step;
    row.levels.push_back(std::clamp(static_cast<int>(std::nearbyint(level)) + row.zero, 0, 255));
  }
  return row;
}

// The weights of one output: -127 to 127.
inline Quantized QuantizedWeights(std::span<const float> weights) {
  float most = 0.0f;
  for (const float value : weights) most = std::max(most, std::abs(value));
  Quantized output;
  output.scale = most / 127.0f;
  for (const float value : weights) {
    const double level = output.scale == 0.0f ? 0.0 : std::nearbyint(static_cast<double>(value) / output.scale);
    output.levels.push_back(static_cast<int>(std::clamp(level, -127.0, 127.0)));
  }
  return output;
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_QUANTIZED_H_
