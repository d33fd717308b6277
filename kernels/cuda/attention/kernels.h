// The attention kernels, one function per launch; each enqueues on `stream` and returns the launch's error.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_KERNELS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/cuda/attention/call.h"

namespace edgewise::cuda {

// event_heads.cu: the tables of the heads that are drawn by events; before anything is drawn.
cudaError_t FillEventTables(cudaStream_t stream, const DeviceCall& call);

// rounds.cu: begins a round, of heads with bits in particular; before the draws.
cudaError_t PlanRound(cudaStream_t stream, const DeviceCall& call);

// draw_events.cu: draws the heads that are drawn by events into lists, as far as they fit. `shared_memory`: bytes that
// a block can have, at least EventRowBytes (lists.h) + kSharedApart.
inline constexpr int64_t kSharedApart = 13 << 10;
cudaError_t DrawEventHeads(cudaStream_t stream, const DeviceCall& call, int64_t shared_memory);
// Adds the ages of a sample of the events under the caps first..first + count - 1 to counts [count, kAgeBuckets]. A cap
// by rate gets none.
cudaError_t SampleAges(cudaStream_t stream, const DeviceCall& call, int64_t first, int64_t count, BinCount* counts);

// draw_pairs.cu: draws the other heads into bits; what the cuts of their caps keep. `again`: bits under a cap that were
// in memory before the round, too, since cuts have been settled.
cudaError_t DrawPairHeads(cudaStream_t stream, const DeviceCall& call, bool again);

// rows.cu: attends over the edges of every row of the round but those of dense heads.
cudaError_t AttendRows(cudaStream_t stream, const DeviceCall& call);

// tiles.cu: every tile item, narrow_items included, and the dense items of the round whose heads are dense. A query's
// result depends on its own keys alone, in tiles whose size is that of the widths and the precision.
cudaError_t AttendTiles(cudaStream_t stream, const DeviceCall& call);
// tiles_wide.cu: the wide items, and the dense items that IsWideDense; on sm_90, in both precisions. AttendTiles calls
// it.
cudaError_t AttendWideTiles(cudaStream_t stream, const DeviceCall& call);
// Sets *found, in device memory: whether the code that the device has loaded is that of sm_90a. Elsewhere the kernels
// of AttendWideTiles are empty and leave their rows unwritten.
cudaError_t HasWideTiles(cudaStream_t stream, bool* found);

// DrawRounds::ForDrawn (rounds.h).
using UseRound = std::function<cudaError_t(const DeviceCall&)>;
using DrawPass = std::function<cudaError_t(Draws draws, bool again, const UseRound& use)>;

// caps.cu: sets every cap's cut from the ages or rates of the edges drawn under the cap, then takes the edges that the
// call uses off the cap's ledger: undrawn + forced + min(drawn, allowed). `by_rate`: some cap has CapRule::kProbable.
// `scratch`: CapScratchBytes(num_caps) bytes.
cudaError_t SelectKept(cudaStream_t stream, const DeviceCall& call, bool by_rate, void* scratch,
                       const DrawPass& for_drawn);
inline constexpr int64_t kMaxCapsAtOnce = 64;
int64_t CapScratchBytes(int64_t num_caps);
// Leaves the edges that the cuts drop out of the round's lists. `count`: adds edges and isolated queries to the counts
// of their heads, once in all passes; after that IsDenseHead is known.
cudaError_t KeepAndCount(cudaStream_t stream, const DeviceCall& call, bool count);

// reports.cu, for drawn problems only: the host counts for the other patterns.
// Sets counts[...].expected of every head of the problems in `problems` [count].
cudaError_t CountExpected(cudaStream_t stream, const DeviceCall& call, const int32_t* problems, int32_t count);
// Adds every kept edge of the round to the degrees [heads, n] of its problem, which begin at
// degrees[first_degrees[problem]]; first_degrees below 0: not wanted.
cudaError_t CountKeyDegrees(cudaStream_t stream, const DeviceCall& call, const int64_t* first_degrees,
                            uint32_t* degrees);
// Counts the kept edges of each query of the round: row_edges [heads, queries].
cudaError_t CountRowEdges(cudaStream_t stream, const DeviceCall& call, int32_t problem, int32_t* row_edges);
// Lists the kept edges of the round: keys and multiplicity (null: not wanted), by row_offsets [heads, queries + 1].
cudaError_t ListEdges(cudaStream_t stream, const DeviceCall& call, int32_t problem, const int64_t* row_offsets,
                      int32_t* keys, int32_t* multiplicity);
// Computes the softmax weights of listed edges of any problem, of queries and keys in float32: one for each key.
// row_offsets as in ListEdges.
cudaError_t EdgeWeights(cudaStream_t stream, const DeviceCall& call, int32_t problem, const int64_t* row_offsets,
                        const int32_t* keys, const int32_t* multiplicity, float* weights);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_KERNELS_H_
