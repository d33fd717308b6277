// Cuts the problems of an attention call into items of work, by shapes and patterns alone, never by drawn edges. Host
// code; the arrays that items point to are staged for the device.
#ifndef EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_
#define EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/device/runtime.h"

namespace edgewise::cuda {

// A given graph that came from all pairs or groups is of kind kTiles; any other of kind kGiven.
PatternKind KindOf(const AttentionPattern& pattern);

// The items of problems whose edges are rows of their own.
struct RowItems {
  std::vector<RowItem> rows, dense;  // as in DeviceCall
};

// Adds the items of a problem of kind kDrawn or kGiven; sets staged.may_be_dense. Heads without multiplicity may be
// dense; which given heads are dense is known here, by the edges of the rows that are attended to.
void AddRowItems(const AttentionProblem& problem, int32_t index, int32_t num_heads, DeviceProblem& staged,
                 RowItems& items);

// Stages the items, the longest first, so that no long one is the last to start. `staged` [problems].
void StageRowItems(RowItems& items, std::span<const DeviceProblem> staged, Staging& staging, DeviceCall& call);

// Adds the items of a problem of kind kTiles. Few queries share an item with those of other heads that have their keys.
// Rows of a given graph share an item where the keys of one begin those of the other. Queries in windows, and those
// that AttentionInputs::runs_as_windows makes so, have all tokens as their list, and a start in it. In the decode phase
// an item has at most kWarpQueries rows, and first_part 0 if it is attended to in parts. `wide`: the wide tile kernel
// may take the problem; it gets the items that it can have, but none of a given graph.
void AddTileItems(const AttentionProblem& problem, int32_t index, const AttentionInputs& inputs, bool wide,
                  Staging& staging, std::vector<TileItem>& items);

inline bool IsWide(const TileItem& item) { return RowsOf(item) > kTileQueries; }

// Orders the items as they start: first wide ones, then those for blocks of several warps, then those for blocks of one
// warp; of each the longest first, so that no long one is the last to start; of wide ones as long, those of a head
// together, whose keys are then in the cache. Returns the number of items for blocks of one warp: those of at most
// kWarpQueries rows if these are most of all items, else only those that are attended to in parts, since their launch
// begins only when the other has ended.
int64_t OrderTileItems(std::vector<TileItem>& items);

// Narrow items that run at once, begin..end - 1.
struct NarrowRun {
  int64_t begin, end;
  int32_t most_parts;  // of one of them
  int64_t part_rows;   // of all
};
// Gives the parts of narrow items their places, and returns the runs: the fewest that have at most `most_rows` part
// rows or one item. One without items if there are none.
std::vector<NarrowRun> PlaceParts(std::span<TileItem> narrow, int64_t most_rows);

// Sets row_offsets, given_keys and multiplicity of a problem of kind kGiven.
void StageGivenRows(const AttentionProblem& problem, int32_t num_heads, Staging& staging, DeviceProblem& staged);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_ATTENTION_ITEMS_H_
