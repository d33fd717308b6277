// Which heads are drawn by events, and the numbers of their tables (event_tables.h), one at a time: sums and maxima of
// them may be taken in any order. Part of the specification (docs/random-numbers.md).
//
// Plain C++17, compiled for the host and for the device.
#ifndef EDGEWISE_KERNELS_DRAW_EVENT_RULE_H_
#define EDGEWISE_KERNELS_DRAW_EVENT_RULE_H_

#include <cmath>
#include <cstdint>

#include "kernels/draw/events.h"

namespace edgewise {

// Reductions of the bounds of a head.
struct EventMeans {
  float query_max = 0.0f, key_max = 0.0f;
  double query = 0.0, key = 0.0;  // means
  double sampled_queries = 0.0;   // mean over the queries 0, kEventSampling, 2 kEventSampling, ..
};
inline constexpr int kEventSampling = 32;

// The rule's constants: picoseconds of one thread, fitted with bench/draws_bench.cc. A change is a new version.
inline constexpr int64_t kEventLeastTokens = 768;
inline constexpr int64_t kEventLeastPerForced = 100;  // tokens for each forced edge of a query
inline constexpr double kEventMostDensity = 1.0 / 33.0;
inline constexpr double kEventMostPerKey = 1.0;     // of a query's events, so that their memory follows n
inline constexpr double kEventTokenCost = 20000.0;  // of a query and key drawn by events
inline constexpr double kEventCost = 2050.0;        // of an event, more than of an edge where pairs are asked
inline constexpr double kEventHeavyCost = 15000.0;  // of a pair of a heavy query or key
inline constexpr double kEventPairCost = 62.0;      // of a pair where pairs are asked

// Whether heads of this shape may be drawn by events; then their bounds are worth measuring.
EDGEWISE_HOST_DEVICE static inline bool MayUseEvents(DrawWay way, int64_t tokens, int rank, bool self_loops,
                                                     int32_t local_window) {
  if (rank > kMaxEventRank || way == DrawWay::kPairs) return false;
  if (way == DrawWay::kEvents) return true;
  const int64_t forced = local_window > 0 ? int64_t{local_window} + 1 : self_loops ? 1 : 0;
  return tokens >= kEventLeastTokens && tokens >= kEventLeastPerForced * forced;
}

// The largest bounds are neither NaN nor so large or small that products of bounds mean nothing.
EDGEWISE_HOST_DEVICE static inline bool HasEventBounds(float query_max, float key_max) {
  return query_max >= 0x1p-60f && query_max <= 0x1p60f && key_max >= 0x1p-60f && key_max <= 0x1p60f;
}

// A bound as a whole number of which the largest is 2^24, and the mean of bounds from the sum of those.
EDGEWISE_HOST_DEVICE static inline uint32_t EventUnits(float bound, float largest) {
  return static_cast<uint32_t>(bound * (16777216.0f / largest));
}
EDGEWISE_HOST_DEVICE static inline double EventMean(uint64_t sum, int64_t count, float largest) {
  return static_cast<double>(sum) / static_cast<double>(count) * (static_cast<double>(largest) / 16777216.0);
}

// Larger bounds are heavy: of a light query and a light key the product is at most 1/2.
struct HeavyLimits {
  float query, key;
};
EDGEWISE_HOST_DEVICE static inline HeavyLimits HeavyLimitsOf(Law law, const EventMeans& means) {
  const double largest = static_cast<double>(means.query_max) * static_cast<double>(means.key_max);
  if (law != Law::kBernoulli || largest <= 0.5) return {0x1p100f, 0x1p100f};
  const double stretch = sqrt(0.5 / (means.query * means.key));
  return {static_cast<float>(means.query * stretch), static_cast<float>(means.key * stretch)};
}

// Whether a head that may use events does. `heavy`: queries and keys. Looks at nothing but the head's content, never at
// a cap.
EDGEWISE_HOST_DEVICE static inline bool UsesEvents(DrawWay way, int64_t tokens, const EventMeans& means,
                                                   int64_t heavy) {
  if (!HasEventBounds(means.query_max, means.key_max)) return false;
  if (way == DrawWay::kEvents) return true;
  const double density = means.query * means.key;  // no smaller than the mean of p
  if (!(density <= kEventMostDensity && means.sampled_queries * means.key <= kEventMostDensity)) return false;
  if (!(static_cast<double>(means.query_max) * means.key <= kEventMostPerKey)) return false;
  const double n = static_cast<double>(tokens);
  const double events = kEventTokenCost + kEventCost * (n * density) + kEventHeavyCost * static_cast<double>(heavy);
  return events < kEventPairCost * n;  // of one query
}

// Key weights as whole parts, rounded up, of which the largest has about 2^30.
EDGEWISE_HOST_DEVICE static inline double EventPartsUnit(float largest_weight) {
  return largest_weight > 0.0f ? 1073741824.0 / static_cast<double>(largest_weight) : 0.0;
}
EDGEWISE_HOST_DEVICE static inline uint64_t EventParts(float weight, double unit) {
  return weight > 0.0f ? static_cast<uint64_t>(static_cast<double>(weight) * unit) + 1 : 0;
}
// Places of a part, in 2^-32, so that all widths together fit into 2^32 - 1 places; and of a key.
EDGEWISE_HOST_DEVICE static inline uint64_t EventPartWidth(uint64_t parts, int64_t tokens) {
  return parts > 0 ? ((0xFFFFFFFFu - static_cast<uint64_t>(tokens)) << 32) / parts : 0;
}
EDGEWISE_HOST_DEVICE static inline uint64_t EventKeyWidth(uint64_t parts, uint64_t part_width) {
  return parts > 0 ? (parts * part_width >> 32) + 1 : 0;
}
// The mean gap of a query: a key's share of its events, width / 2^32, comes at least as often as the query's bound
// times the key's weight.
EDGEWISE_HOST_DEVICE static inline float EventMeanGap(float bound, uint64_t part_width, double unit) {
  const double scale =
      part_width > 0 ? 18446744073709551616.0 / (static_cast<double>(part_width) * unit) * 1.000001 : 0.0;
  const float gap = 2147483648.0f / static_cast<float>(static_cast<double>(bound) * scale);
  return gap < 0x1p60f ? gap : 0x1p60f;
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_EVENT_RULE_H_
