#include "kernels/host/event_tables.h"

#include <algorithm>
#include <cstring>

namespace edgewise {
namespace {

// Bounds from squared norms. Returns the largest, or NaN if any is NaN: bits of floats without signs ascend with them.
float TakeBounds(float exploration, int64_t n, float* values) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    values[i] = EventBound(values[i], exploration);
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof(bits));
    largest = std::max(largest, bits & 0x7FFFFFFFu);
  }
  float result;
  std::memcpy(&result, &largest, sizeof(result));
  return result;
}

double MeanOf(const float* values, int64_t n, int64_t step, float largest) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i += step) sum += EventUnits(values[i], largest);
  return EventMean(sum, (n + step - 1) / step, largest);
}

int64_t CountAbove(const float* values, int64_t n, float limit) {
  return std::count_if(values, values + n, [&](float value) { return value > limit; });
}

void FillGuide(const EventTables& tables) {
  const int bits = EventGuideBits(tables.tokens);
  int64_t key = 0;
  for (uint64_t run = 0; run < uint64_t{1} << bits; ++run) {
    const auto place = static_cast<uint32_t>(run << (32 - bits));
    while (key < tables.tokens && tables.places[key + 1] <= place) ++key;
    tables.guide[run] = static_cast<uint64_t>(key) << 32 | tables.places[key + 1];
  }
}

}  // namespace

int EventGuideBits(int64_t tokens) {
  int bits = 4;
  while (int64_t{1} << bits < 4 * tokens) ++bits;
  return bits;
}

bool MayUseEvents(const DrawnRows& drawn, int64_t tokens, int rank) {
  return MayUseEvents(drawn.way, tokens, rank, drawn.self_loops, drawn.local_window);
}

EventMeans MeasureEvents(const DrawnRows& drawn, EventTables& tables) {
  EventMeans means;
  means.query_max = TakeBounds(drawn.exploration, tables.tokens, tables.query_bound);
  means.key_max = TakeBounds(drawn.exploration, tables.tokens, tables.key_bound);
  if (!HasEventBounds(means.query_max, means.key_max)) return means;
  means.query = MeanOf(tables.query_bound, tables.tokens, 1, means.query_max);
  means.key = MeanOf(tables.key_bound, tables.tokens, 1, means.key_max);
  means.sampled_queries = MeanOf(tables.query_bound, tables.tokens, kEventSampling, means.query_max);
  return means;
}

bool UsesEvents(const DrawnRows& drawn, const EventMeans& means, const EventTables& tables) {
  if (!HasEventBounds(means.query_max, means.key_max)) return false;
  const HeavyLimits limits = HeavyLimitsOf(drawn.law, means);
  return UsesEvents(drawn.way, tables.tokens, means,
                    CountAbove(tables.query_bound, tables.tokens, limits.query) +
                        CountAbove(tables.key_bound, tables.tokens, limits.key));
}

void FillEventTables(const DrawnRows& drawn, const EventMeans& means, EventTables& tables) {
  const int64_t n = tables.tokens;
  const HeavyLimits limits = HeavyLimitsOf(drawn.law, means);
  float light_query = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    if (tables.query_bound[i] <= limits.query) light_query = std::max(light_query, tables.query_bound[i]);
  }
  tables.heavy_keys = 0;
  float largest = 0.0f;  // weight
  for (int64_t j = 0; j < n; ++j) {
    float& key = tables.key_bound[j];
    const bool heavy = key > limits.key;
    if (heavy) tables.heavy[tables.heavy_keys++] = static_cast<int32_t>(j);
    key = heavy ? 0.0f : EventWeight(drawn.law, key, light_query);
    largest = std::max(largest, key);
  }
  const double unit = EventPartsUnit(largest);
  uint64_t parts = 0;
  for (int64_t j = 0; j < n; ++j) parts += EventParts(tables.key_bound[j], unit);
  const uint64_t part_width = EventPartWidth(parts, n);
  uint64_t place = 0;
  for (int64_t j = 0; j < n; ++j) {
    tables.places[j] = static_cast<uint32_t>(place);
    place += EventKeyWidth(EventParts(tables.key_bound[j], unit), part_width);
  }
  tables.places[n] = static_cast<uint32_t>(place);
  tables.places[n + 1] = 0xFFFFFFFFu;
  FillGuide(tables);
  tables.heavy_queries = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float bound = tables.query_bound[i];
    const bool heavy = bound > limits.query;
    tables.heavy_queries += heavy ? 1 : 0;
    tables.mean_gap[i] = heavy ? 0.0f : EventMeanGap(bound, part_width, unit);
  }
}

}  // namespace edgewise
