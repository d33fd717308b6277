// The definition of edges that are drawn by events. Where a head has few edges, asking every pair costs more than the
// edges do. Each query then has a stream of events in the order of their ages; an event falls on a key, and is accepted
// with a chance that makes the accepted events those of the law. docs/random-numbers.md is the specification;
// event_tables.h makes what the functions below need of a head. Every backend and every fast path gives exactly the
// edges of these functions.
//
// Plain C++17, compiled for the host and for the device. Internal linkage: files of several instruction sets include
// it.
#ifndef EDGEWISE_KERNELS_DRAW_EVENTS_H_
#define EDGEWISE_KERNELS_DRAW_EVENTS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/draw/draw.h"

namespace edgewise {

inline constexpr uint32_t kStreamEvents = 5;          // gaps and places, two events a block
inline constexpr uint32_t kStreamEventFractions = 6;  // what a place leaves open, one event a block

inline constexpr uint32_t kEventAgeOne = 1u << 31;  // ages of events are multiples of 2^-31
// largest rank of memberships: margins cover sums of this many products
inline constexpr int kMaxEventRank = 512;

// The bound of a query or key whose memberships have this squared norm: p_ij <= bound_i * bound_j.
EDGEWISE_HOST_DEVICE static inline float EventBound(float square, float exploration) {
  return sqrtf(square + exploration) * 1.00001f;
}

// The share of a key in the places that events fall on, before scaling. Times the bound of a query of at most
// `light_query` it is no less than the hazard p / (1 - s p) of law bernoulli at any age s, and than p.
EDGEWISE_HOST_DEVICE static inline float EventWeight(Law law, float key_bound, float light_query) {
  return law == Law::kBernoulli ? key_bound / (1.0f - light_query * key_bound) * 1.000001f : key_bound;
}

// -ln((word | 1) / 2^32): an exponential variable, by exponent and a polynomial.
EDGEWISE_HOST_DEVICE static inline float EventExponential(uint32_t word) {
  const float whole = static_cast<float>(word | 1u);
  uint32_t bits;
  memcpy(&bits, &whole, sizeof(bits));
  const int32_t exponent = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;  // whole = m * 2^exponent, m near 1
  bits -= static_cast<uint32_t>(exponent) << 23;
  float m;
  memcpy(&m, &bits, sizeof(m));
  const float z = m - 1.0f, z2 = z * z;
  float p = 7.0376836292e-2f;
  p = fmaf(p, z, -1.1514610310e-1f);
  p = fmaf(p, z, 1.1676998740e-1f);
  p = fmaf(p, z, -1.2420140846e-1f);
  p = fmaf(p, z, 1.4249322787e-1f);
  p = fmaf(p, z, -1.6668057665e-1f);
  p = fmaf(p, z, 2.0000714765e-1f);
  p = fmaf(p, z, -2.4999993993e-1f);
  p = fmaf(p, z, 3.3333331174e-1f);
  const float log_m = fmaf(p * z, z2, fmaf(-0.5f, z2, z));
  return fmaf(static_cast<float>(32 - exponent), 0.69314718056f, -log_m);
}

// The age between an event and the one before it, in 2^-31, at most kEventAgeOne. `mean_gap` is finite.
EDGEWISE_HOST_DEVICE static inline uint32_t EventGap(uint32_t word, float mean_gap) {
  const float gap = fmaf(EventExponential(word), mean_gap, 0.5f);
  return static_cast<uint32_t>(gap < 2147483648.0f ? gap : 2147483648.0f);
}

enum class EventFate { kRejected, kAccepted, kOpen };

// An event `age` old that fell on the key `distance` places before the key's last one, of a query of `mean_gap`.
EDGEWISE_HOST_DEVICE static inline EventFate JudgeEvent(Law law, float rate, float mean_gap, uint32_t age,
                                                        uint32_t distance) {
  const float places = rate * (2.0f * mean_gap);  // of the key that accept: 2^32 * p / (events of the row per unit)
  const float s = law == Law::kBernoulli ? static_cast<float>(age) * 0x1p-31f : 0.0f;
  const float left = fmaf(-s, rate, 1.0f);  // share of the pairs of this rate that have no edge yet
  const float d = static_cast<float>(distance);
  if ((d + 1.0f) * left <= places) return EventFate::kAccepted;
  return d * left >= places ? EventFate::kRejected : EventFate::kOpen;
}
// Whether an open event is accepted. `fraction`: word 0 of the event's block of stream kStreamEventFractions.
EDGEWISE_HOST_DEVICE static inline bool AcceptOpenEvent(Law law, float rate, float mean_gap, uint32_t age,
                                                        uint32_t distance, uint32_t fraction) {
  const float places = rate * (2.0f * mean_gap);
  const float s = law == Law::kBernoulli ? static_cast<float>(age) * 0x1p-31f : 0.0f;
  const float left = fmaf(-s, rate, 1.0f);
  const double d = static_cast<double>(distance) + static_cast<double>(fraction) / 4294967296.0;
  return d * static_cast<double>(left) < static_cast<double>(places);
}

// The age of an edge of a pair that is drawn by its uniform number because its query or key is heavy; as ages of
// events.
EDGEWISE_HOST_DEVICE static inline uint32_t HeavyPairAge(uint64_t uniform, float rate) {
  return static_cast<uint32_t>(static_cast<double>(uniform) / 512.0 / static_cast<double>(rate));
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_EVENTS_H_
