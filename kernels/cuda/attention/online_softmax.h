// Softmax of a row whose scores come in parts. Scores are in units of ln 2, so that a weight is exp2 of a difference.
//
// Compiled for the host and for the device.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ONLINE_SOFTMAX_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ONLINE_SOFTMAX_H_

#include <cmath>

#include "kernels/draw/philox.h"

namespace edgewise::cuda {

inline constexpr float kLog2E = 1.44269504088896340736f;

// 2 to the power of x: relative error 2^-22, and 0 for what is below the least normal number, so that it is one
// instruction on a GPU.
EDGEWISE_HOST_DEVICE inline float Exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// The largest score so far and the sum of the weights relative to it. A score that is NaN or +infinity makes the sum
// NaN; scores that are all -infinity leave it 0, and so does a part without scores.
struct OnlineSoftmax {
  float largest = -INFINITY;
  float sum = 0.0f;

  // Takes note of scores up to `score`. The caller multiplies its sums so far, `sum` included, by the number returned.
  EDGEWISE_HOST_DEVICE float Raise(float score) {
    const float before = largest;
    largest = fmaxf(largest, score);
    return Exp2(before - Unit());
  }

  // exp2(score - largest); no score so far was above `largest`.
  EDGEWISE_HOST_DEVICE float Weight(float score) const { return Exp2(score - Unit()); }

  // The score that weights are relative to: -infinity less itself would be NaN.
  EDGEWISE_HOST_DEVICE float Unit() const { return largest == -INFINITY ? 0.0f : largest; }

  // The factor that turns the weighted sum of values into the result: NaN where there are edges but their largest score
  // is not finite, zero where there are none.
  EDGEWISE_HOST_DEVICE float Normalizer(bool has_edges) const {
    if (!has_edges) return 0.0f;
    return sum > 0.0f ? 1.0f / sum : NAN;
  }
};

// Two parts as one. The parts' weighted sums of values are added as first * of_first + second * of_second. The order of
// the parts changes no bit.
struct MergedSoftmax {
  OnlineSoftmax state;
  float of_first, of_second;
};
EDGEWISE_HOST_DEVICE inline MergedSoftmax Merge(const OnlineSoftmax& first, const OnlineSoftmax& second) {
  MergedSoftmax merged;
  merged.state.largest = fmaxf(first.largest, second.largest);
  merged.of_first = merged.state.Weight(first.largest);
  merged.of_second = merged.state.Weight(second.largest);
  merged.state.sum = first.sum * merged.of_first + second.sum * merged.of_second;
  return merged;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ONLINE_SOFTMAX_H_
