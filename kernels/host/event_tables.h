// The tables of one head that is drawn by events (events.h): how often events of a query come, and which keys they fall
// on. A pure function of the head's memberships, the same on every device.
#ifndef EDGEWISE_KERNELS_HOST_EVENT_TABLES_H_
#define EDGEWISE_KERNELS_HOST_EVENT_TABLES_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/draw/event_rule.h"

namespace edgewise {

// Memory of the caller; arrays of n = tokens unless stated.
struct EventTables {
  int64_t tokens = 0;
  float* query_bound = nullptr;  // EventBound of each query
  float* key_bound = nullptr;    // and of each key; FillEventTables leaves weights there
  float* mean_gap = nullptr;     // between events of a query, in ages; 0: a heavy query has none. May be query_bound
  uint32_t* places = nullptr;    // [n + 2] where keys begin: key j has the places [places[j], places[j + 1]), and those
                                 // from places[n] on belong to no key; then 2^32 - 1
  uint64_t* guide = nullptr;     // [EventGuideSize(n)] of equal runs of places: the key of the first << 32 | its end
  int32_t* heavy = nullptr;      // [heavy_keys], ascending. Their pairs, and those of heavy queries, are drawn by their
  int64_t heavy_keys = 0;        // uniform numbers (draw.h): their hazard has no useful bound
  int64_t heavy_queries = 0;
};

int EventGuideBits(int64_t tokens);
inline int64_t EventGuideSize(int64_t tokens) { return int64_t{1} << EventGuideBits(tokens); }

bool MayUseEvents(const DrawnRows& drawn, int64_t tokens, int rank);
// Turns tables.query_bound and key_bound from squared norms, in the order of MembershipDot, into bounds.
EventMeans MeasureEvents(const DrawnRows& drawn, EventTables& tables);
// Needs the bounds.
bool UsesEvents(const DrawnRows& drawn, const EventMeans& means, const EventTables& tables);
// Fills the other tables.
void FillEventTables(const DrawnRows& drawn, const EventMeans& means, EventTables& tables);

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_HOST_EVENT_TABLES_H_
