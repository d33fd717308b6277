// The definition of an edge draw, pair by pair: the uniform number of a pair, the probability of an edge, the three
// laws and the age of an edge under a budget. docs/random-numbers.md is the specification; every backend and every fast
// path gives exactly the edges of these functions.
//
// Plain C++17, compiled for the host and for the device. No function here allocates, fails or keeps state.
#ifndef EDGEWISE_KERNELS_DRAW_DRAW_H_
#define EDGEWISE_KERNELS_DRAW_DRAW_H_

#include <cmath>
#include <cstdint>

#include "kernels/draw/philox.h"

namespace edgewise {

// How the mean matrix P becomes a graph (docs/maths.md, "Three laws").
enum class Law : uint8_t {
  kBernoulli,    // edge with probability p: what the published code trains and evaluates with
  kPoissonSet,   // edge with probability 1 - exp(-p): Algorithm 1 of the SBM-Transformer paper
  kPoissonMulti  // Poisson(p) parallel edges; the multiplicity weights the softmax
};

inline constexpr uint32_t kRandomNumbersVersion = 2;  // of docs/random-numbers.md

// How the edges of a head are found.
enum class DrawWay : uint8_t {
  kRule,   // as the specification says (event_rule.h); the others are for tests and benchmarks
  kPairs,  // each pair is asked, as below
  kEvents  // events.h, where the memberships have bounds
};

// The key of all random numbers of a draw. The batch slot and the index of an input in its request are not in it.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t sample = 0;  // index of the forward pass in its ensemble
  uint32_t layer = 0;   // application index, < 4096: tied layers differ
  uint32_t side = 0;    // 0: first sequence, 1: second
};

inline constexpr uint32_t kStreamBytes = 0;  // the high 8 bits of a pair's uniform, 16 keys a block
inline constexpr uint32_t kStreamLow = 1;    // its low 32 bits, 4 keys a block
inline constexpr uint32_t kStreamOrder = 2;  // permutation.h: normal and uniform numbers of sources
inline constexpr uint32_t kStreamRows = 3;   // permutation.h: normal numbers that shuffle the rows of a grid
inline constexpr uint32_t kStreamToken = 4;  // permutation.h: the choice of a generated token

// Third counter word: layer (12 bits) | head (12) | side (1) | stream (7).
EDGEWISE_HOST_DEVICE inline uint32_t CounterWord(const RandomKey& key, uint32_t head, uint32_t stream) {
  return (key.layer & 0xFFFu) << 20 | (head & 0xFFFu) << 8 | (key.side & 1u) << 7 | (stream & 0x7Fu);
}

// Place of the high byte of key position j: byte `index` of the 16 of block `counter` (byte b of word w is 4w + b, low
// byte first). One block has the 16 bytes, among 64 positions, that one thread owns in an m16n8 tensor-core fragment:
// block 4J + t, byte 2e + b <-> position 64J + 8e + 2t + b.
struct ByteAddress {
  uint32_t counter;
  uint32_t index;
};
EDGEWISE_HOST_DEVICE inline ByteAddress HighByteAddress(uint32_t position) {
  const uint32_t column = position & 63u;
  return {(position >> 6) * 4 + ((column >> 1) & 3u), (column >> 3) * 2 + (column & 1u)};
}

EDGEWISE_HOST_DEVICE inline uint32_t PairHighByte(const RandomKey& key, uint32_t head, uint32_t query,
                                                  uint32_t position) {
  const ByteAddress address = HighByteAddress(position);
  const PhiloxBlock block =
      Philox4x32(key.seed, {{address.counter, query, CounterWord(key, head, kStreamBytes), key.sample}});
  return block.word[address.index >> 2] >> (8 * (address.index & 3u)) & 0xFFu;
}

EDGEWISE_HOST_DEVICE inline uint32_t PairLowWord(const RandomKey& key, uint32_t head, uint32_t query,
                                                 uint32_t position) {
  const PhiloxBlock block =
      Philox4x32(key.seed, {{position >> 2, query, CounterWord(key, head, kStreamLow), key.sample}});
  return block.word[position & 3u];
}

inline constexpr double kPairUniformScale = 1099511627776.0;  // 2^40

// The uniform number u of a pair, as u * 2^40: high byte, then low word. `query` and `position` are places in the
// sequence as sent, pads included.
EDGEWISE_HOST_DEVICE inline uint64_t PairUniform(const RandomKey& key, uint32_t head, uint32_t query,
                                                 uint32_t position) {
  return static_cast<uint64_t>(PairHighByte(key, head, query, position)) << 32 |
         PairLowWord(key, head, query, position);
}

inline constexpr int kDotLanes = 16;

// <x, y> in float32, in the order that all backends use: 16 partial sums by fused multiply-add (element t goes to
// lane t mod 16), then lanes l and l + 8, l + 4, l + 2, l + 1 are added. `rank` is a multiple of 16.
EDGEWISE_HOST_DEVICE inline float MembershipDot(const float* x, const float* y, int rank) {
  float lane[kDotLanes] = {};
  for (int t = 0; t < rank; t += kDotLanes) {
    for (int l = 0; l < kDotLanes; ++l) lane[l] = fmaf(x[t + l], y[t + l], lane[l]);
  }
  for (int step = kDotLanes / 2; step > 0; step /= 2) {
    for (int l = 0; l < step; ++l) lane[l] += lane[l + step];
  }
  return lane[0];
}

// p = min(1, max(0, <x, y>) + exploration), float32 throughout; 0 for NaN.
EDGEWISE_HOST_DEVICE inline float EdgeRate(float dot, float exploration) {
  const float p = (dot > 0.0f ? dot : 0.0f) + exploration;
  return p < 1.0f ? p : 1.0f;
}

// 1 - exp(-p) for p in [0, 1], by its Taylor series in Horner form, so that all devices round alike.
EDGEWISE_HOST_DEVICE inline double OneMinusExp(double p) {
  double sum = 1.0;
  for (int term = 20; term >= 2; --term) sum = 1.0 - p / term * sum;
  return p * sum;
}

// -ln(1 - u) for u in [0, 1 - 2^-40], by exponent and mantissa, then 2 atanh((m - 1) / (m + 1)).
EDGEWISE_HOST_DEVICE inline double NegLogOneMinus(double u) {
  double m = 1.0 - u;  // exact: u is a multiple of 2^-40
  int exponent = 0;
  while (m < 0.70710678118654752) {
    m *= 2.0;
    --exponent;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double z2 = z * z;
  double sum = 0.0;
  for (int odd = 27; odd >= 1; odd -= 2) sum = sum * z2 + 1.0 / odd;
  return -(2.0 * z * sum + exponent * 0.693147180559945309417);
}

// Probability of at least one edge at rate p.
EDGEWISE_HOST_DEVICE inline double EdgeProbability(Law law, float p) {
  return law == Law::kBernoulli ? static_cast<double>(p) : OneMinusExp(p);
}

// The pair is an edge iff PairUniform < this: ceil(probability * 2^40).
EDGEWISE_HOST_DEVICE inline uint64_t EdgeThreshold(double probability) {
  return static_cast<uint64_t>(ceil(probability * kPairUniformScale));
}

// Age of an edge in [0, 1): the graph G_tau of the edges younger than tau has the same law at rate tau * p, and G_tau
// only grows with tau (docs/maths.md, "Ages"). `uniform` as PairUniform gives it; p > 0.
EDGEWISE_HOST_DEVICE inline double EdgeAge(Law law, uint64_t uniform, float p) {
  const double u = static_cast<double>(uniform) / kPairUniformScale;
  return (law == Law::kBernoulli ? u : NegLogOneMinus(u)) / static_cast<double>(p);
}

// Parallel edges of law poisson_multi at `rate` = tau * p <= 1: the number of k >= 1 with P(Poisson(rate) >= k) > u.
EDGEWISE_HOST_DEVICE inline int EdgeMultiplicity(uint64_t uniform, double rate) {
  const double u = static_cast<double>(uniform) / kPairUniformScale;
  const double zero = 1.0 - OneMinusExp(rate);  // P(Poisson = 0)
  double term = zero;                           // P(Poisson = k - 1)
  int k = 1;
  for (; k < 32; ++k) {
    term *= rate / k;  // P(Poisson = k)
    double tail = 0.0;
    for (int m = 16; m >= 1; --m) tail = rate / (k + m) * (1.0 + tail);
    if (!(term * (1.0 + tail) > u)) break;
  }
  return k - 1;
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_DRAW_H_
