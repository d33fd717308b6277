// Random numbers that are drawn once per layer or per token: the noise that orders the sources of SSA, and the choice
// of a generated token. docs/random-numbers.md is the specification.
//
// Plain C++17, compiled for the host and for the device. No function here allocates, fails or keeps state.
#ifndef EDGEWISE_KERNELS_DRAW_PERMUTATION_H_
#define EDGEWISE_KERNELS_DRAW_PERMUTATION_H_

#include <cmath>
#include <cstdint>

#include "kernels/draw/draw.h"
#include "kernels/draw/philox.h"

namespace edgewise {

// The block of element `index` of `window`. Head 0: the heads of a layer share it.
EDGEWISE_HOST_DEVICE inline PhiloxBlock OrderBlock(const RandomKey& key, uint32_t window, uint32_t index,
                                                   uint32_t stream) {
  return Philox4x32(key.seed, {{index, window, CounterWord(key, 0, stream), key.sample}});
}

// cos(2 pi u) for u in [0, 1), a multiple of 2^-32: u to the nearest quarter turn, then a Taylor series of cosine or
// sine.
EDGEWISE_HOST_DEVICE inline double CosineOfTurn(double u) {
  const double turns = 4.0 * u;
  const double quarter = floor(turns + 0.5);
  const double angle = (turns - quarter) * 1.57079632679489661923;  // within pi / 4
  const double square = angle * angle;
  const int which = static_cast<int>(quarter) & 3;
  const bool odd = (which & 1) != 0;
  double sum = 1.0;
  for (int term = 20; term >= 2; term -= 2) {
    const double n = odd ? term + 1.0 : term;
    sum = 1.0 - square / (n * (n - 1.0)) * sum;
  }
  const double value = odd ? angle * sum : sum;
  return which == 1 || which == 2 ? -value : value;
}

// A standard normal number by the method of Box and Muller: sqrt(-2 ln u1) cos(2 pi u2), u1 = (word 0 + 1/2) / 2^32,
// u2 = word 1 / 2^32.
EDGEWISE_HOST_DEVICE inline double NormalOf(const PhiloxBlock& block) {
  const double u1 = (static_cast<double>(block.word[0]) + 0.5) / 4294967296.0;
  const double u2 = static_cast<double>(block.word[1]) / 4294967296.0;
  return sqrt(2.0 * NegLogOneMinus(1.0 - u1)) * CosineOfTurn(u2);
}

EDGEWISE_HOST_DEVICE inline double OrderNormal(const RandomKey& key, uint32_t window, uint32_t index, uint32_t stream) {
  return NormalOf(OrderBlock(key, window, index, stream));
}

// Sort key of place `index` of a shuffle; ties go to the lower index. `scale` is sigma times the length.
EDGEWISE_HOST_DEVICE inline double OrderKey(uint32_t index, double scale, double normal) {
  return static_cast<double>(index) + scale * normal;
}

// Sort key of a uniform permutation.
EDGEWISE_HOST_DEVICE inline uint64_t OrderUniform(const RandomKey& key, uint32_t index) {
  const PhiloxBlock block = OrderBlock(key, 0, index, kStreamOrder);
  return static_cast<uint64_t>(block.word[0]) << 32 | block.word[1];
}

// The uniform number in [0, 1) that chooses the token at `position` of a generated text.
EDGEWISE_HOST_DEVICE inline double TokenUniform(uint64_t seed, uint32_t position) {
  const PhiloxBlock block = OrderBlock({seed, 0, 0, 0}, 0, position, kStreamToken);
  const uint64_t word = static_cast<uint64_t>(block.word[0]) << 32 | block.word[1];
  return static_cast<double>(word >> 11) / 9007199254740992.0;
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_PERMUTATION_H_
