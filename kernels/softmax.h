// From logits to probabilities, in float64.
#ifndef EDGEWISE_KERNELS_SOFTMAX_H_
#define EDGEWISE_KERNELS_SOFTMAX_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace edgewise {

// Fills `probabilities` from as many logits: the answers exclude each other.
inline void Softmax(const float* logits, std::span<double> probabilities) {
  const size_t count = probabilities.size();
  const double largest = *std::max_element(logits, logits + count);
  double total = 0.0;
  for (size_t c = 0; c < count; ++c) total += probabilities[c] = std::exp(logits[c] - largest);
  for (double& probability : probabilities) probability /= total;
}

inline bool AllFinite(const float* values, size_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_SOFTMAX_H_
