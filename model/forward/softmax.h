// From logits to the numbers of an answer, in float64.
#ifndef EDGEWISE_MODEL_FORWARD_SOFTMAX_H_
#define EDGEWISE_MODEL_FORWARD_SOFTMAX_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "kernels/softmax.h"

namespace edgewise {

inline double Sigmoid(double logit) { return 1.0 / (1.0 + std::exp(-logit)); }

// As Softmax, but each answer stands for itself.
inline void Sigmoids(const float* logits, std::span<double> probabilities) {
  std::transform(logits, logits + probabilities.size(), probabilities.begin(), Sigmoid);
}

// Entry `index` of Softmax.
inline double SoftmaxOf(const float* logits, size_t count, size_t index) {
  const double largest = *std::max_element(logits, logits + count);
  double total = 0.0;
  for (size_t c = 0; c < count; ++c) total += std::exp(logits[c] - largest);
  return std::exp(logits[index] - largest) / total;
}

inline constexpr char kNonFiniteUrl[] = "edgewise/non-finite-output";

// INTERNAL: the model computed infinity or NaN for an input.
inline absl::Status NonFiniteOutput() {
  absl::Status status = absl::InternalError("the model gave a number that is not finite (NON_FINITE_OUTPUT)");
  status.SetPayload(kNonFiniteUrl, absl::Cord());
  return status;
}
inline bool IsNonFiniteOutput(const absl::Status& status) { return status.GetPayload(kNonFiniteUrl).has_value(); }

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_SOFTMAX_H_
