// Heads that are drawn by events (kernels/events.h): their tables, and the edges of one block of query rows, also only
// those younger than an age.
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

// Lays out the tables of the heads that may be drawn by events.
void PlaceEventTables(Call& call, Memory& memory);
// Decides whether a head with tables is drawn by events, and fills them.
void MeasureEvents(const CpuKernels& kernels, Head& head);

// The drawn edges of a block under a cap, row after row, in no order within a row.
struct AgedEvents {
  std::vector<int64_t> ends;   // [rows] where a row ends
  std::vector<int32_t> keys;   // ~key where it is an edge without this event: a younger one has come, or it is forced
  std::vector<uint32_t> ages;  // as keys
};
// Fills `events` with the accepted events younger than `limit`. Those of ~key only for law poisson_multi.
void DrawAgedEvents(const Call& call, const Head& head, int64_t row0, int rows, uint32_t limit, Worker& worker,
                    AgedEvents& events);

// Fills worker.drawn with all edges of a block.
void DrawEventBlock(const Call& call, const Head& head, int64_t row0, int rows, Worker& worker);
// Makes a worker ready for rows of up to so many events.
void LayEventWorker(const Head& head, int64_t row_events, Worker& worker);
// Appends row `row` of a block: its forced edges and `count` events. `parallel` gets edges of multiplicity above 1. The
// worker is laid for them.
void AppendEventRow(const Call& call, const Head& head, int64_t row0, int row, const int32_t* keys, int64_t count,
                    Worker& worker, EdgeLists& lists, std::vector<ParallelEdge>& parallel);

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_EVENTS_H_
