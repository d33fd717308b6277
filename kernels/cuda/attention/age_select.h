// Ages as integers, so that the youngest drawn edges of a cap are found without a list of all edges.
//
// An age lies in [0, 1) and falls into one of 2^32 ticks. The high half of the tick names a bucket, the low half a part
// of that bucket. So edges are counted by bucket, the edges of the first dropped edge's bucket by part, and the few
// that remain are compared by (age, order).
//
// Compiled for the host and for the device.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_AGE_SELECT_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_AGE_SELECT_H_

#include <cstdint>
#include <cstring>

#include "kernels/budget.h"
#include "kernels/philox.h"

namespace edgewise::cuda {

inline constexpr uint32_t kAgeBuckets = 1u << 16;  // and parts of a bucket

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

// A drawn edge in the order in which edges are kept.
struct AgedEdge {
  uint64_t age_bits;
  uint64_t order;  // EdgeOrder
};
EDGEWISE_HOST_DEVICE inline bool IsBefore(const AgedEdge& a, const AgedEdge& b) {
  return a.age_bits < b.age_bits || (a.age_bits == b.age_bits && a.order < b.order);
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
