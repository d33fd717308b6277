// Heads that are drawn by events (kernels/draw/events.h): their tables, and the edges of one block of query rows, also
// at an age that is known only roughly.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_

#include <cstdint>

#include "kernels/cpu/attention/work.h"
#include "kernels/draw/events.h"

namespace edgewise::cpu_attention {

// Lays out the tables of the heads that may be drawn by events.
void PlaceEventTables(Call& call, Memory& memory);
// Decides whether a head with tables is drawn by events, and fills them. Their bounds are squared norms before.
void MeasureEvents(HeadPlan& head);

// Ages, in 2^-31: edges younger than `low` are wanted as edges, and the others younger than `high` as open events.
struct AgeLimits {
  uint32_t low = kEventAgeOne, high = kEventAgeOne;
};
// Fills worker.drawn with the edges of a block.
void DrawEventBlock(const Call& call, const HeadPlan& head, int64_t row0, int rows, const AgeLimits& limits,
                    Worker& worker);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_
