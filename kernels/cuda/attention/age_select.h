// Ages as integers, so that the youngest drawn edges of a cap are found without a list of all edges.
//
// An age lies in [0, 1) and falls into one of 2^32 ticks. The high half of the tick names a bucket, the low half a part
// of that bucket. So edges are counted by bucket, the edges of the first dropped edge's bucket by part, and the few
// that remain are compared by (age, order). Where a cap keeps edges by their rate, that is an integer as it is. Many
// edges may have one rate, so their order is counted by digits, too.
//
// Compiled for the host and for the device.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_AGE_SELECT_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_AGE_SELECT_H_

#include <cstdint>
#include <cstring>

#include "kernels/draw/budget.h"
#include "kernels/draw/philox.h"

namespace edgewise::cuda {

inline constexpr uint32_t kAgeBuckets = 1u << 16;  // and parts of a bucket
using BinCount = unsigned long long;               // in a bucket: more than 2^32 edges may have one rate
inline constexpr int kAgeBucketShift = 15;         // an age of an event, in 2^-31, is in the bucket age >> 15

// The tick of an age: floor(age * 2^32), exact and monotone. An age of 1 or more (by rounding only) is in the last one.
EDGEWISE_HOST_DEVICE inline uint32_t AgeTick(double age) {
  const double ticks = age * 4294967296.0;
  return ticks < 4294967295.0 ? static_cast<uint32_t>(ticks) : 0xFFFFFFFFu;
}
EDGEWISE_HOST_DEVICE inline uint32_t AgeBucket(uint32_t tick) { return tick >> 16; }
EDGEWISE_HOST_DEVICE inline uint32_t AgePart(uint32_t tick) { return tick & 0xFFFFu; }

// Ages as integers in the same order. The zero of law poisson has a sign; the sum loses it.
EDGEWISE_HOST_DEVICE inline uint64_t AgeBits(double age) {
  age += 0.0;
  uint64_t bits;
  memcpy(&bits, &age, sizeof(bits));
  return bits;
}
EDGEWISE_HOST_DEVICE inline double AgeOfBits(uint64_t bits) {
  double age;
  memcpy(&age, &bits, sizeof(age));
  return age;
}

// A rate in (0, 1] as an integer, in falling order.
EDGEWISE_HOST_DEVICE inline uint64_t RateRank(float rate) {
  uint32_t bits;
  memcpy(&bits, &rate, sizeof(bits));
  return 0x3F800000u - bits;
}

// A drawn edge in the order in which edges are kept.
struct AgedEdge {
  uint64_t age_bits;  // AgeBits; CapRule::kProbable: RateRank
  uint64_t order;     // EdgeOrder
};
EDGEWISE_HOST_DEVICE inline bool IsBefore(const AgedEdge& a, const AgedEdge& b) {
  return a.age_bits < b.age_bits || (a.age_bits == b.age_bits && a.order < b.order);
}

// The order in 16-bit digits, the highest first, of which an edge of kRandom has its tick alone.
inline constexpr int kMaxDigits = 6;
EDGEWISE_HOST_DEVICE inline int DigitsOf(CapRule keep) { return keep == CapRule::kRandom ? 2 : kMaxDigits; }
EDGEWISE_HOST_DEVICE inline uint32_t DigitOf(CapRule keep, const AgedEdge& edge, int digit) {
  if (keep == CapRule::kRandom) {
    const uint32_t tick = AgeTick(AgeOfBits(edge.age_bits));
    return digit == 0 ? AgeBucket(tick) : AgePart(tick);
  }
  const uint64_t half = digit < 2 ? edge.age_bits >> (16 * (1 - digit)) : edge.order >> (16 * (5 - digit));
  return static_cast<uint32_t>(half & 0xFFFFu);
}

// Byte 15 (the highest) to 0 of (age_bits, order) as one number.
EDGEWISE_HOST_DEVICE inline uint32_t ByteOf(const AgedEdge& edge, int byte) {
  return static_cast<uint32_t>((byte < 8 ? edge.order >> (8 * byte) : edge.age_bits >> (8 * (byte - 8))) & 0xFFu);
}

// How many drawn edges may stay where `taken` edges are undrawn or forced. `ledger`: edges left; null: no ledger.
EDGEWISE_HOST_DEVICE inline uint64_t AllowedDrawn(uint64_t max_edges, const uint64_t* ledger, const BudgetShare& share,
                                                  uint64_t taken) {
  uint64_t allowance = max_edges;
  if (ledger != nullptr) {
    const uint64_t part = LayerAllowance(*ledger, share);
    allowance = part < allowance ? part : allowance;
  }
  return allowance > taken ? allowance - taken : 0;
}

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_AGE_SELECT_H_
